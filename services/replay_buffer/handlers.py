"""The service: one holding a running job, and the knowledge of which jobs are being cancelled."""

from __future__ import annotations

import asyncio

from services.replay_buffer.config import Settings
from services.replay_buffer.holding import ROLE, Holding
from services.replay_buffer.selection import Policy
from shared.job.spec import JobSpec
from shared.wire.jobs import ACTIVE_STATES, hold_role, supervise_jobs, watch_jobs
from shared.wire.messages import JobRecord
from shared.wire.service import Service

GAUGE_SECONDS = 1.0


class ReplayBuffer:
    """`start` gives the service its loops."""

    def __init__(self, service: Service[Settings]) -> None:
        self._service = service
        self._cancelling: set[str] = set()
        self._holdings: dict[str, Holding] = {}

    def start(self) -> None:
        self._service.loop(self._watch(), "job states")
        self._service.loop(self._gauges(), "gauges")
        self._service.loop(supervise_jobs(self._service, self.hold, states=ACTIVE_STATES), "jobs")

    async def hold(self, record: JobRecord) -> None:
        """Hold the role for one job whenever it is free; returns never."""
        spec = JobSpec.model_validate(record.spec)
        settings = self._service.settings
        policy = Policy(
            groups_per_step=spec.algorithm.groups_per_step,
            staleness=spec.algorithm.staleness,
            steps=spec.algorithm.steps,
            pace_seconds=settings.pace_seconds,
        )
        self._note(record)

        async def notice(level: str, text: str) -> None:
            await self._service.event(record.id, "notice", {"level": level, "text": text})

        async def work() -> None:
            holding = Holding(
                self._service.bus,
                record.id,
                self._service.id,
                policy,
                retain=spec.retain,
                cancelling=lambda: record.id in self._cancelling,
                notice=notice,
                long_poll_seconds=settings.long_poll_seconds,
                quiet_seconds=settings.quiet_seconds,
            )
            self._holdings[record.id] = holding
            try:
                await holding.run()
            finally:
                del self._holdings[record.id]

        await hold_role(self._service.bus, record.id, ROLE, self._service.id, work)

    async def _watch(self) -> None:
        async for record in watch_jobs(self._service.bus):
            self._note(record)
            holding = self._holdings.get(record.id)
            if holding is not None:
                holding.changed.notify()

    async def _gauges(self) -> None:
        while True:
            self._service.gauges.clear()
            for holding in self._holdings.values():
                self._service.gauges.update(holding.gauges())
            await asyncio.sleep(GAUGE_SECONDS)

    def _note(self, record: JobRecord) -> None:
        if record.state == "cancelling":
            self._cancelling.add(record.id)
        else:
            self._cancelling.discard(record.id)
