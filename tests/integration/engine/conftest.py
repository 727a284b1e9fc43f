"""A tiny model folder and real engine processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
START_SECONDS = 60


class EngineProcess:
    """`python -m engine` on a free port."""

    def __init__(self, folder: Path, log: Path, *arguments: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "engine", "--model-path", str(folder), "--dtype", "float32"]
        if "--port" not in arguments:
            command += ["--port", "0"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        with log.open("wb") as err:
            self.process = subprocess.Popen(
                [*command, *arguments], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=err, text=True
            )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().strip()
        self.url = self.line.removeprefix("listening on ")

    def end(self, number: int = signal.SIGTERM, seconds: float = 10) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=259, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=8192, initializer_range=0.2, eos_token_id=1,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., EngineProcess]]:
    """`start(folder, *arguments)`: an engine that ends with the test."""
    started: list[EngineProcess] = []

    def begin(folder: Path, *arguments: str) -> EngineProcess:
        started.append(EngineProcess(folder, tmp_path / f"engine-{len(started)}.log", *arguments))
        return started[-1]

    yield begin
    for engine in started:
        if engine.process.poll() is None:
            engine.process.kill()
        engine.process.wait(10)
        assert engine.process.stdout is not None
        engine.process.stdout.close()


@pytest.fixture(scope="session")
def wait_for() -> Callable[..., None]:
    """`wait_for(condition, seconds=20)`: polls until it holds."""

    def wait(condition: Callable[[], Any], seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "waited too long"
            time.sleep(0.01)

    return wait
