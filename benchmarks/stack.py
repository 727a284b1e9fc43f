"""A local stack for a benchmark: started in a folder of its own, ended with the benchmark."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from deploy.local.process import die_with_parent

PROJECT = Path(__file__).resolve().parents[1]


@contextmanager
def local_stack(home: Path, *words: str, environment: dict[str, str] | None = None) -> Iterator[str]:
    """The URL of a stack that is up."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "deploy.local", "up", "--quiet", "--home", str(home), "--port", str(port), *words]
    process = subprocess.Popen(
        command,
        cwd=PROJECT,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 90
        while not _ready(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the stack did not come up; its logs are in {home / 'logs'}")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", params={"stack": True}, timeout=2).status_code == 200
    except httpx.TransportError:
        return False
