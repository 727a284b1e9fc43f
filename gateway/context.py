"""What the routes work with, and whether it is there yet: the gateway answers before it has reached the broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Request

from gateway.config import Settings
from gateway.errors import ApiError
from gateway.index import JobIndex
from gateway.jobs import find_job
from gateway.roster import Roster
from gateway.samples import SampleReader
from gateway.submit import Submissions
from shared.wire.bus.api import Bus
from shared.wire.messages import JobRecord

Tell = Callable[[str, str, dict[str, Any]], Awaitable[None]]  # job, kind of event, body


class Gateway:
    """The parts that answer requests; those that need the broker are there once `attach` was called."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.index = JobIndex()
        self.roster = Roster(time.monotonic)
        self.stopping = asyncio.Event()
        self._bus: Bus | None = None
        self._tell: Tell | None = None

    def attach(self, bus: Bus, tell: Tell) -> None:
        """The broker is reached; `tell` publishes an event."""
        self._bus, self._tell = bus, tell
        self.samples = SampleReader(bus)
        self.submissions = Submissions(bus, self.index, self.settings.check_seconds)

    @property
    def missing(self) -> list[str]:
        """What it waits for before it can answer."""
        if self._bus is None:
            return [f"the message broker at {self.settings.nats_url} (not reached yet)"]
        return [] if self.index.ready else ["the list of jobs (not read yet)"]

    @property
    def bus(self) -> Bus:
        if self._bus is None:
            raise ApiError(503, f"the message broker at {self.settings.nats_url} is not reached yet: try again")
        return self._bus

    @property
    def data_dir(self) -> Path:
        return self.settings.data_dir

    async def job(self, reference: str) -> JobRecord:
        """The job that `reference` (id, unique beginning of one, or name) means."""
        return await find_job(self.bus, self.index, reference)

    async def tell(self, job: str, kind: str, body: dict[str, Any]) -> None:
        if self._tell is not None:
            await self._tell(job, kind, body)


def gateway_of(request: Request) -> Gateway:
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


def connected(request: Request) -> Gateway:
    """The gateway once it can answer; 503 before."""
    gateway = gateway_of(request)
    if gateway.missing:
        raise ApiError(503, f"not ready: {'; '.join(gateway.missing)}")
    return gateway


async def job_of(job: str, gateway: Annotated[Gateway, Depends(connected)]) -> JobRecord:
    return await gateway.job(job)


AnyGateway = Annotated[Gateway, Depends(gateway_of)]
ReadyGateway = Annotated[Gateway, Depends(connected)]
TheJob = Annotated[JobRecord, Depends(job_of)]
