"""The command line as people and scripts use it: words, JSON, exit statuses."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
numbers = itertools.count()
COMMANDS = (
    "demo",
    "up",
    "down",
    "ps",
    "scale",
    "logs",
    "submit",
    "validate",
    "jobs",
    "show",
    "watch",
    "pause",
    "resume",
    "cancel",
    "delete",
    "samples",
    "sample",
    "audit",
    "metrics",
    "export",
)


@pytest.fixture
def job(services):
    id = f"line-{next(numbers):06x}"
    services.create(id)
    return id


def test_help_names_every_command_and_imports_nothing_heavy():
    code = "import sys; from slipstream.__main__ import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "print('|', *sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, cwd=PROJECT)
    text, _, modules = done.stdout.partition("|")
    for command in COMMANDS:
        assert f"\n    {command} " in text
    heavy = {"httpx", "fastapi", "numpy", "msgspec", "rich", "yaml", "torch", "asyncio", "pydantic"}
    assert not heavy & set(modules.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_of_its_own(command, name):
    done = command(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: slipstream {name}")


def test_submit_starts_only_what_it_needs(command, services, job_file):
    services.serve()
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "slipstream", "submit", str(job_file), "--url", "http://127.0.0.1:1"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        cwd=PROJECT,
    )
    assert done.returncode == 3
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "httpx" in imported
    assert not {"fastapi", "numpy", "msgspec", "torch", "pydantic"} & imported


def test_a_job_is_submitted_listed_shown_and_steered(command, services, job_file):
    services.serve()
    made = command("submit", str(job_file), "--json")
    assert made.returncode == 0, made.stderr
    id = json.loads(made.stdout)["id"]
    assert id in command("jobs").stdout
    assert id in [job["id"] for job in json.loads(command("jobs", "--json", "--state", "running").stdout)]
    shown = command("show", id)
    assert f"{id} is running" in shown.stdout
    assert "rows: 7" in shown.stdout
    assert command("pause", id).stdout == f"{id} is pausing\n"
    assert command("resume", id).stdout == f"{id} is running\n"
    assert command("cancel", id).stdout == f"{id} is cancelling\n"
    refused = command("pause", id)
    assert (refused.returncode, refused.stderr) == (1, f"slipstream: {id} is cancelling: it cannot pause\n")


def test_a_job_file_is_read_from_standard_input(command, services, job_file):
    services.serve()
    done = command("validate", "-", stdin=job_file.read_text())
    assert done.returncode == 0, done.stderr
    assert done.stdout == "-: fine\n  rows: 7\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", "YAML"),
        ("name: sums\nmodle: tiny", "modle"),
        ("name: 7\nmodel: tiny\ndata: {reasoning_gym: x}\nreward: [{name: r, kind: exact}]", "name"),
    ],
)
def test_a_bad_job_file_is_status_2_with_a_line_a_problem(command, tmp_path, text, words):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    for name in ("submit", "validate"):
        done = command(name, str(path))
        assert done.returncode == 2
        assert words in done.stderr
        assert all(line.startswith("slipstream: ") for line in done.stderr.splitlines())


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("show", "absent"), 2),
        (("submit", "absent.yaml"), 2),
        (("sample", "nonsense"), 2),
        (("jobs", "--limit", "0"), 2),
        (("frobnicate",), 2),
        (("watch", "--bad"), 2),
        ((), 2),
        (("delete", "absent", "--yes"), 2),
    ],
)
def test_bad_usage_is_status_2_without_a_trace(command, words, status):
    done = command(*words)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


def test_no_gateway_is_status_3(command):
    done = command("jobs", url="http://127.0.0.1:1")
    assert done.returncode == 3
    assert done.stderr.startswith("slipstream: no answer from the gateway at http://127.0.0.1:1")
    assert done.stderr.count("\n") == 1


def test_a_watch_that_is_piped_prints_a_line_an_event_and_ends_with_the_job(command, services, job):
    services.tell(job, "step", 1, reward_mean=0.1, exact_solve_rate=0.0, version="1.1")
    services.tell(
        job, "evaluation", round=0, version_step=0, mode="greedy", solve_rate=0.5, solve_rate_stderr=0.1, prompts=9
    )
    end(services, job, "completed")
    done = command("watch", job)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("step 1/3  version 1.1  reward 0.100")
    assert lines[1].startswith("evaluation after step 0, greedy: solved 0.500 ± 0.100")
    assert lines[-1] == f"{job} is completed"
    events = [json.loads(line) for line in command("watch", job, "--json").stdout.splitlines()]
    assert [event["event"] for event in events] == ["step", "evaluation", "state"]


def test_a_failed_job_is_status_1_with_its_reason(command, services, job):
    end(services, job, "failed", "disk full at checkpoint 4.1")
    done = command("watch", job)
    assert done.returncode == 1
    assert f"{job} is failed: disk full at checkpoint 4.1" in done.stdout


def test_ctrl_c_ends_the_watching_and_says_that_the_job_goes_on(gateway, services, job, until):
    services.tell(job, "step", 1)
    process = subprocess.Popen(
        [sys.executable, "-m", "slipstream", "watch", job, "--url", gateway.url],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert next(line for line in process.stdout if line.startswith("step 1/3"))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 130
    assert f"slipstream watch {job}" in said
    assert f"slipstream cancel {job}" in said
    assert "Traceback" not in said


def test_an_audit_that_does_not_balance_is_status_1(command, services, job):
    from shared.wire import messages as m
    from shared.wire import topics

    balanced = command("audit", job)
    assert balanced.returncode == 0, balanced.stderr
    assert "balanced" in balanced.stdout

    async def spoil():
        await services.bus.declare(topics.job_streams(job))
        dropped = m.Dropped(epoch=0, samples=[f"{job}/0/0"], reason="stale")
        await services.bus.publish(topics.ledger_subject(job, "replay-buffer"), m.encode(dropped))

    services.do(spoil())
    done = command("audit", job)
    assert done.returncode == 1
    assert "NOT BALANCED" in done.stdout
    assert f"{job}/0/0" in done.stdout
    assert json.loads(command("audit", job, "--json").stdout)["balanced"] is False


def test_delete_waits_until_the_job_is_gone(command, services, job, until):
    refused = command("delete", job, stdin="")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert command("delete", job, "--yes", "--no-wait").returncode == 0
    services.do(services.bus.bucket("jobs").delete(job))
    again = command("delete", job, "--yes")
    assert again.returncode == 2


def test_reading_commands_live_with_an_empty_job(command, job):
    assert "no stored samples" in command("samples", job).stdout
    assert "no steps yet" in command("metrics", job).stdout
    assert json.loads(command("metrics", job, "--json").stdout)["steps"] == []
    absent = command("sample", f"{job}/0/0")
    assert absent.returncode == 2
    assert "never issued" in absent.stderr


def test_output_into_a_closed_pipe_is_no_error(gateway, services):
    for _ in range(3):
        services.create(f"pipe-{time.monotonic_ns() % 16**6:06x}")
    line = f"{sys.executable} -m slipstream jobs --url {gateway.url} | true"
    done = subprocess.run(["sh", "-c", line], cwd=PROJECT, capture_output=True, text=True, timeout=30)
    assert done.stderr == ""


def end(services, job, state, reason=""):
    """What the scheduler does at the end of a job."""
    import msgspec

    from shared.wire.jobs import change_job

    services.do(change_job(services.bus, job, lambda r: msgspec.structs.replace(r, state=state, reason=reason)))
    services.tell(job, "state", state=state, reason=reason)
