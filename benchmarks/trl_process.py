"""TRL in a process of its own: its environment is made when it is missing, its steps are asked for one by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.stack import PROJECT
from deploy.local.process import die_with_parent

ENVIRONMENT = PROJECT / "benchmarks" / ".trl-venv"
TORCH = "torch==2.13.0"  # first and alone: so pip takes the CPU build where it finds one
REST = ("trl==1.16.0", "transformers==5.24.0", "accelerate==1.15.0")

Step = Callable[[], dict[str, Any]]


def environment() -> Path:
    """The Python that has TRL."""
    python = ENVIRONMENT / "bin" / "python"
    ready = ENVIRONMENT / ".ready"
    if not ready.exists():
        print(f"installing {TORCH} and {REST[0]} into {ENVIRONMENT} ...", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
        for wanted in ([TORCH], REST):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
        ready.touch()
    return python


@contextmanager
def trl(options: dict[str, Any], log: Path, threads: dict[str, str]) -> Iterator[Step]:
    """A trainer that has loaded its model; each call is one optimizer step."""
    command = [str(environment()), str(PROJECT / "benchmarks" / "trl_peer.py"), json.dumps(options)]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | threads,
            preexec_fn=die_with_parent,
        )
    assert process.stdin is not None and process.stdout is not None
    ask, answers = process.stdin, process.stdout

    def step() -> dict[str, Any]:
        ask.write("\n")
        ask.flush()
        line = answers.readline()
        if not line:
            raise SystemExit(f"TRL ended with code {process.wait()}: {log.read_text()[-2000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    try:
        yield step
    finally:
        process.kill()
        process.wait()
