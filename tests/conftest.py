"""What every test may use: coroutine tests, and real nats-servers with the shipped configuration.

nats_url      a server for the tests of one module: use names of your own in it. Real services see every job in theirs
nats_server   `nats_server()` starts one for this test, with .url, .pid, .kill(), .stop(), .restart(), .pause() and
              .resume()
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import os
import shutil
import signal
import subprocess
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CONFIGURATION = Path(__file__).parent.parent / "deploy" / "nats.conf"
START_SECONDS = 20.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests on the event loop that the services use."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    import uvloop

    names = inspect.signature(pyfuncitem.function).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(pyfuncitem.function(**arguments))
    return True


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class NatsServer:
    """A child process of this one, which dies with it. Its port and its store outlive a `kill`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listen = "127.0.0.1:-1"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.monitoring_url = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> NatsServer:
        folder = self._folder / "ports"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        binary = Path(sysconfig.get_path("scripts")) / "nats-server"
        program = str(binary) if binary.exists() else "nats-server"
        command = [program, "-c", str(CONFIGURATION), "--ports_file_dir", str(folder)]
        environment = {
            **os.environ,
            "SLIPSTREAM_NATS_LISTEN": self._listen,
            "SLIPSTREAM_NATS_HTTP": "127.0.0.1:-1",
            "SLIPSTREAM_NATS_STORE": str(self._folder / "store"),
        }
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, preexec_fn=_die_with_parent
            )
        deadline = time.monotonic() + START_SECONDS
        ports = folder / f"nats-server_{self.pid}.ports"
        while not self._ready(ports):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"nats-server did not start: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.01)
        self._listen = self.url.removeprefix("nats://")
        return self

    def _ready(self, ports: Path) -> bool:
        try:
            found = json.loads(ports.read_text())
            self.url, self.monitoring_url = found["nats"][0], found["monitoring"][0]
            with urllib.request.urlopen(f"{self.monitoring_url}/healthz", timeout=1) as reply:
                return bool(reply.status == 200)
        except (OSError, ValueError, KeyError, IndexError):
            return False

    def kill(self) -> None:
        """kill -9, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Start again on the same port and store."""
        self.start()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[Callable[[], NatsServer]]:
    servers: list[NatsServer] = []

    def start() -> NatsServer:
        folder = tmp_path / f"nats-{len(servers)}"
        folder.mkdir()
        servers.append(NatsServer(folder))
        return servers[-1].start()

    yield start
    for server in servers:
        server.kill()


@pytest.fixture(scope="module")
def nats_url(tmp_path_factory: Any) -> Iterator[str]:
    server = NatsServer(tmp_path_factory.mktemp("nats")).start()
    yield server.url
    server.stop()
