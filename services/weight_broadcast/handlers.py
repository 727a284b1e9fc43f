"""The service: one `JobWeights` an active job, what processes say they hold, and the end of jobs."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from functools import partial
from pathlib import Path

from services.weight_broadcast.config import Settings
from services.weight_broadcast.file_thread import FileThread
from services.weight_broadcast.holds import Holds
from services.weight_broadcast.job_weights import JobWeights
from services.weight_broadcast.server import listen, server
from services.weight_broadcast.store import Store, default_shared_dir
from shared.wire import topics
from shared.wire.bus.api import Stored
from shared.wire.jobs import ACTIVE_STATES, DELETED, list_jobs, supervise_jobs, watch_jobs
from shared.wire.messages import ENDED_STATES, BadMessage, JobRecord, Presence, decode
from shared.wire.service import Service

log = logging.getLogger(__name__)
GAUGE_SECONDS = 1.0
EVERY_PRESENCE = "presence.>"


class WeightBroadcast:
    """`run` serves until the process is told to stop."""

    def __init__(self, service: Service[Settings]) -> None:
        settings = service.settings
        self._service = service
        shared = (settings.shared_dir or default_shared_dir()) if settings.copies else None
        self._store = Store(settings.data_dir, shared)
        self._holds = Holds(settings.hold_seconds)
        self._learned_by = time.monotonic() + settings.hold_seconds
        self._files = FileThread()
        self._jobs: dict[str, JobWeights] = {}
        self._host = f"{socket.gethostname()}/{boot_id()}"
        self._url = ""

    async def run(self) -> None:
        service = self._service
        serving, files = listen(service.settings.address), server(self._store)
        port = serving.getsockname()[1]
        self._url = service.settings.url(port)
        await self._sweep()
        stop_listening = await service.bus.listen(EVERY_PRESENCE, self.on_presence)
        service.loop(files.serve(sockets=[serving]), "file server")
        service.loop(self._gauges(), "gauges")
        changing = [
            service.loop(self._watch(), "job states"),
            service.loop(supervise_jobs(service, self.serve_job, states=ACTIVE_STATES), "jobs"),
        ]
        log.info("files are served at %s", self._url)
        await service.stopping.wait()
        await stop_listening()
        for task in changing:
            task.cancel()
        await asyncio.gather(*changing, return_exceptions=True)
        files.should_exit = True
        await self._files.run(self._store.clear_copies)
        self._files.close()

    async def serve_job(self, record: JobRecord) -> None:
        async def notice(level: str, text: str) -> None:
            await self._service.event(record.id, "notice", {"level": level, "text": text})

        weights = JobWeights(
            self._service.bus,
            record.id,
            self._store,
            self._holds,
            host=self._host,
            url=self._url,
            files=self._files,
            notice=notice,
            learned_by=self._learned_by,
        )
        self._jobs[record.id] = weights
        try:
            await weights.run()
        finally:
            del self._jobs[record.id]

    async def on_presence(self, stored: Stored) -> None:
        try:
            self._holds.hear(decode(Presence, stored.data), time.monotonic())
        except BadMessage as error:
            log.debug("presence on %s set aside: %s", stored.subject, error)

    async def _sweep(self) -> None:
        """Give back the memory of jobs that ended, or were deleted, while nobody served them."""
        active = {record.id for record in await list_jobs(self._service.bus) if record.state in ACTIVE_STATES}
        await self._files.run(partial(self._store.sweep, active))

    async def _watch(self) -> None:
        async for record in watch_jobs(self._service.bus):
            if record.state in (*ENDED_STATES, "deleting", DELETED):
                deleted = record.state in ("deleting", DELETED)
                await self._files.run(partial(self._store.close, record.id, everything=deleted))
            if record.state == DELETED:  # an announcement that was on its way while the job was being deleted
                await self._service.bus.purge(topics.WEIGHTS.name, topics.weights_subject(record.id))

    async def _gauges(self) -> None:
        while True:
            self._service.gauges.clear()
            for weights in self._jobs.values():
                self._service.gauges.update(weights.gauges())
            await asyncio.sleep(GAUGE_SECONDS)


def boot_id() -> str:
    """Tells two hosts of one name apart, where the system has such an id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
