"""The local stack as a context: up on the way in, its address inside, down on the way out."""

from __future__ import annotations

import contextlib
import ctypes
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gateway.cli.demo import StackFailed

DOWN_SECONDS = 20.0
PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def running_stack(home: Path, port: int | None) -> Iterator[str]:
    """The gateway's URL. `StackFailed` carries what `up` said and its exit status."""
    command = [sys.executable, "-m", "deploy.local", "up", "--quiet", "--home", str(home)]
    command += ["--port", str(port)] if port else []
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches the demo, which then ends the stack in order
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )  # fmt: skip
    try:
        yield _address(process)
    finally:
        process.terminate()
        try:
            process.communicate(timeout=DOWN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    said: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line.strip())
        found = re.search(r"up at (https?://\S+?);", line)
        if found is not None:
            return found[1]
    text = said[-1].removeprefix("slipstream: ") if said else "the stack ended without a word"
    raise StackFailed(text, process.wait())


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
