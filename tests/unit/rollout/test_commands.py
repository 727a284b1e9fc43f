"""How an engine is started."""

import sys
from pathlib import Path

from services.rollout.command import engine_command
from services.rollout.meters import Meters, detail
from services.rollout.switching import Flags


def command(kind: str, flags: Flags = Flags(), usual: str = "", extra: str = "") -> list[str]:  # noqa: B008
    return engine_command(
        kind, usual=usual, extra=extra, folder=Path("/m"), version="3.1", flags=flags, slots=8, port=0
    )


def value(of: list[str], option: str) -> str:
    return of[of.index(option) + 1]


def test_the_built_in_engine_runs_in_this_python_with_what_the_job_decides() -> None:
    started = command("builtin", Flags("float32", deterministic=True, context_length=512))
    assert started[:3] == [sys.executable, "-m", "engine"]
    assert value(started, "--model-path") == "/m" and value(started, "--weight-version") == "3.1"
    assert value(started, "--dtype") == "float32" and value(started, "--context-length") == "512"
    assert "--deterministic" in started


def test_sglang_takes_the_same_names_but_for_determinism() -> None:
    started = command("sglang", Flags(deterministic=True))
    assert "sglang.launch_server" in started
    assert "--enable-deterministic-inference" in started and "--deterministic" not in started
    assert "--context-length" not in started


def test_settings_replace_the_program_and_add_options() -> None:
    started = command("sglang", usual="/venv/python 'my launch.py' --device cpu", extra="--mem-fraction-static 0.5")
    assert started[:4] == ["/venv/python", "my launch.py", "--device", "cpu"]
    assert started[-2:] == ["--mem-fraction-static", "0.5"]


def test_the_token_rate_is_over_the_last_ten_seconds() -> None:
    meters = Meters()
    for second in range(20):
        meters.drew(30, float(second))
    assert meters.rate(19.0) == 33.0
    assert meters.rate(60.0) == 0.0
    assert meters.tokens == 600


def test_presence_names_what_is_held_and_what_is_about_to_be() -> None:
    assert detail("job", ["3.1", "4.1"], 7)["versions"] == {"job": ["3.1", "4.1"]}
    assert detail("", [], None)["versions"] == {}
