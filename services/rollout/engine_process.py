"""One engine process: started, watched, ended. An engine that someone else runs is adopted instead.

The process dies with the worker (PR_SET_PDEATHSIG), and its whole group is ended with it. `ended` is set, with the
reason, when it dies by itself, and when it has not answered for so long that it must be taken for dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import re
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence

from services.rollout.engine_client import EngineClient
from services.rollout.errors import EngineUnusable

log = logging.getLogger("rollout")
LISTENING = re.compile(r"listening on (http://\S+)")
PR_SET_PDEATHSIG = 1
READY_POLL_SECONDS = 0.05
WATCH_SECONDS = 1.0
STOP_SECONDS = 2.5
LAST_LINES = 5


def free_port() -> int:
    """A port that was free a moment ago, for engines that cannot choose one themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def die_with_parent() -> None:
    """Runs in the child before the engine does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class EngineProcess:
    """`client` speaks to it once `start` or `adopt` has returned."""

    def __init__(self, *, silent_seconds: float) -> None:
        self._silent_seconds = silent_seconds
        self.client: EngineClient | None = None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._child: asyncio.subprocess.Process | None = None
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def start(self, command: Sequence[str], *, url: str, within_seconds: float) -> None:
        """Start `command` and wait until it serves, at `url` or, when that is empty, where it says it listens."""
        try:
            self._child = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT, start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        except OSError as error:
            raise EngineUnusable(f"cannot start the engine ({command[0]}): {error.strerror or error}") from error
        if url:
            self._address.set_result(url)
        self._tasks = [
            asyncio.create_task(self._read_lines(), name="engine output"),
            asyncio.create_task(self._wait_for_end(), name="engine end"),
        ]
        try:
            async with asyncio.timeout(within_seconds):
                await self._until_ready()
        except TimeoutError:
            await self.stop()
            raise EngineUnusable(f"the engine was not ready after {within_seconds:g} s{self._said()}") from None
        except BaseException:
            await self.stop()
            raise
        self._tasks.append(asyncio.create_task(self._watch(), name="engine watch"))

    async def adopt(self, url: str, *, within_seconds: float) -> None:
        """Use the engine at `url`. A pause that a worker before us left behind is undone."""
        self._address.set_result(url)
        try:
            async with asyncio.timeout(within_seconds):
                await self._until_ready()
        except TimeoutError:
            await self.stop()
            raise EngineUnusable(f"no engine is ready at {url} (waited {within_seconds:g} s)") from None
        assert self.client is not None
        await self.client.resume()
        self._tasks.append(asyncio.create_task(self._watch(), name="engine watch"))

    async def stop(self) -> None:
        """End the process group: asked first, then made to. An adopted engine is left running."""
        for task in self._tasks:
            if task.get_name() == "engine watch":
                task.cancel()
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.terminate()  # it ends its own helpers in its own order
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._child.wait()
            except TimeoutError:
                log.warning("the engine did not end in %g s and is killed", STOP_SECONDS)
            self._signal(signal.SIGKILL)
            await self._child.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end("stopped")
        if self.client is not None:
            await self.client.close()

    async def _until_ready(self) -> None:
        while not self._address.done():
            if self.ended.done():
                raise EngineUnusable(self.ended.result())
            await asyncio.wait({self._address, self.ended}, return_when=asyncio.FIRST_COMPLETED)
        self.client = EngineClient(self._address.result())
        while not await self.client.ready():
            if self.ended.done():
                raise EngineUnusable(self.ended.result())
            await asyncio.sleep(READY_POLL_SECONDS)
        if self.ended.done():
            raise EngineUnusable(self.ended.result())
        await self.client.probe()

    async def _read_lines(self) -> None:
        """The engine's own words go to our log, and say why if it ends."""
        assert self._child is not None and self._child.stdout is not None
        while True:
            try:
                line = await self._child.stdout.readline()
            except ValueError:  # a line over the limit: it is skipped up to there
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").strip()
            if not text:
                continue
            self._lines.append(text)
            log.debug("engine: %s", text)
            if not self._address.done() and (found := LISTENING.search(text)) is not None:
                self._address.set_result(found[1])

    async def _wait_for_end(self) -> None:
        assert self._child is not None
        code = await self._child.wait()
        with contextlib.suppress(TimeoutError):  # its last words may still be in the pipe
            async with asyncio.timeout(0.2):
                await asyncio.shield(self._tasks[0])
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        self._end(f"the engine ended {how}{self._said()}")

    async def _watch(self) -> None:
        """Takes an engine that does not answer for dead, however alive its process looks."""
        assert self.client is not None
        answered = time.monotonic()
        while (silent := time.monotonic() - answered) < self._silent_seconds:
            await asyncio.sleep(WATCH_SECONDS)
            if await self.client.ready(within_seconds=self._silent_seconds):
                answered = time.monotonic()
        self._end(f"the engine at {self.client.url} has answered nothing for {silent:.0f} s")
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, number)

    def _end(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)

    def _said(self) -> str:
        """Its last line, which mostly says why."""
        return f": {self._lines[-1][:300]}" if self._lines else ""
