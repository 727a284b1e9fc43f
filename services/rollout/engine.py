"""The worker's one engine: makes it hold a version of a job's weights, by an update where one will do, else a restart.

Nothing runs until a job needs it. `loaded` says what the engine has proved to hold; None after any doubt, so that the
next `hold` starts from nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from services.rollout.command import engine_command, shown
from services.rollout.config import Settings
from services.rollout.engine_client import EngineClient
from services.rollout.engine_process import EngineProcess, free_port
from services.rollout.errors import EngineGone, NotUpdated
from services.rollout.switching import Change, Flags, Loaded, engine_change

log = logging.getLogger("rollout")


class Engine:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: EngineProcess | None = None
        self.loaded: Loaded | None = None
        self.switch_seconds = 0.0  # what the last change of job took
        self.starts = 0

    @property
    def client(self) -> EngineClient:
        if self._process is None or self._process.client is None or self._process.ended.done():
            raise EngineGone("no engine is running")
        return self._process.client

    @property
    def alive(self) -> bool:
        return self._process is not None and not self._process.ended.done()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def died(self) -> str:
        """Returns, with the reason, when the engine that runs now has ended."""
        assert self._process is not None
        return await asyncio.shield(self._process.ended)

    async def hold(self, job: str, *, flags: Flags, shape: str, folder: Path, version: str, in_flight: bool) -> None:
        """Load `version` from `folder` and prove it. Raises `EngineError`; the engine holds nothing known then."""
        if not self.alive:
            await self.stop()
        change = engine_change(self.loaded, job=job, flags=flags, shape=shape, version=version)
        if change is Change.KEEP:
            return
        switching = self.loaded is None or self.loaded.job != job
        before, began = self.loaded, time.monotonic()
        self.loaded = None
        try:
            if change is Change.RESTART and not (self._settings.engine_url and self.alive):
                await self._restart(folder, version, flags)
            if change is Change.UPDATE or self._settings.engine_url:
                await self.client.update_from_disk(folder, version, in_flight=in_flight)
        except NotUpdated:
            if before is not None and await self.client.held_version() == before.version:
                self.loaded = before  # nothing has changed: it goes on as it was
            else:
                await self.stop()
            raise
        except BaseException:
            await self.stop()
            raise
        self.loaded = Loaded(job=job, flags=flags, shape=shape, version=version)
        if switching:
            self.switch_seconds = time.monotonic() - began
        log.info("engine holds %s of %s (%s, %.2f s)", version, job, change.name.lower(), time.monotonic() - began)

    async def stop(self) -> None:
        """End the engine, if one runs; an adopted one is only let go."""
        process, self._process, self.loaded = self._process, None, None
        if process is not None:
            await process.stop()

    async def _restart(self, folder: Path, version: str, flags: Flags) -> None:
        settings = self._settings
        await self.stop()
        self._process = EngineProcess(silent_seconds=settings.engine_silent_seconds)
        self.starts += 1
        if settings.engine_url:
            await self._process.adopt(settings.engine_url, within_seconds=settings.engine_start_seconds)
            return
        port = 0 if settings.engine == "builtin" else free_port()
        command = engine_command(
            settings.engine, usual=settings.engine_command, extra=settings.engine_arguments, folder=folder,
            version=version, flags=flags, slots=settings.slots, port=port,
        )  # fmt: skip
        log.info("starting %s", shown(command))
        url = f"http://127.0.0.1:{port}" if port else ""
        await self._process.start(command, url=url, within_seconds=settings.engine_start_seconds)
        held = await self.client.held_version()
        if held != version:
            raise NotUpdated(f"the engine at {self.client.url} says it holds {held!r} and was started with {version}")
