"""The local stack as a context: up on the way in, its address inside, down on the way out."""

from __future__ import annotations

import contextlib
import ctypes
import re
import signal
import subprocess
import sys
import threading
from collections import deque
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
    said = _Said(process)
    try:
        yield said.address()
    finally:
        process.terminate()
        try:
            process.wait(DOWN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        said.close()


class _Said:
    """What the stack says, read all the time so that it never waits for a reader."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=20)
        self._url = ""
        self._known = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.strip())
            found = re.search(r"up at (https?://[^\s;]+)", line)
            if found is not None:
                self._url = found[1]
                self._known.set()
        self._known.set()

    def address(self) -> str:
        self._known.wait()
        if not self._url:
            text = self._lines[-1].removeprefix("slipstream: ") if self._lines else "it ended without a word"
            raise StackFailed(text, self._process.wait())
        return self._url

    def close(self) -> None:
        self._reader.join(2)
        if self._process.stdout is not None:
            self._process.stdout.close()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
