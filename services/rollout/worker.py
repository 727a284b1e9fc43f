"""The rollout worker: one engine, one job at a time, each running job in its turn.

consumes  KV jobs (what runs); lease.<job> of other jobs, to learn whether they have work
produces  one `JobSession` after another
stalls    while no job runs: then the engine is stopped after a while, so that an idle worker is small

          no job --choose--> session --job ended / its share is used up / it has nothing--> leave --> choose
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from services.rollout.config import Settings
from services.rollout.engine import Engine
from services.rollout.meters import Meters, detail
from services.rollout.session import JobSession
from services.rollout.switching import Offer, choose, in_turn, leaves
from services.rollout.weights import WeightsStore
from shared.wire import topics
from shared.wire.bus.api import BusError
from shared.wire.jobs import DELETED, watch_jobs
from shared.wire.messages import ENDED_STATES, AskLeases, BadMessage, GrantLeases, Version, decode, encode
from shared.wire.service import Service

log = logging.getLogger("rollout")
LOOK_SECONDS = 1.0
CHOOSE_SECONDS = 0.25
PROBE_SECONDS = 1.0
ENDED = (*ENDED_STATES, "deleting", DELETED)  # in these nobody wants what a worker holds


class Worker:
    def __init__(self, service: Service[Settings], engine: Engine, store: WeightsStore) -> None:
        self._service, self._engine, self._store = service, engine, store
        self._bus, self._settings = service.bus, service.settings
        self._meters = Meters()
        self._states: dict[str, str] = {}
        self._last_job = ""
        self._session: JobSession | None = None
        self._idle_since = time.monotonic()

    async def follow_jobs(self) -> None:
        async for record in watch_jobs(self._bus):
            self._states[record.id] = record.state
            if record.state == DELETED:
                del self._states[record.id]
                if self._session is None or self._session.job != record.id:
                    await asyncio.to_thread(self._store.forget, record.id)

    async def run(self) -> None:
        """Until the service is told to stop; then what is held goes back and the engine ends."""
        try:
            while not self._service.stopping.is_set():
                job = await self._choose()
                if job is None:
                    await self._rest()
                    continue
                await self._stay(job)
        finally:
            await self._engine.stop()

    async def report(self) -> None:
        """Keeps gauges and details current, for ever."""
        while True:
            session = self._session
            proved = session.keeper.proved if session else ""
            versions = [v for v in (proved, session.keeper.loading if session else "") if v]
            self._service.gauges.update(
                self._meters.gauges(
                    now=time.monotonic(), running=len(session.book.held) if session else 0,
                    slots=self._settings.slots, version_step=Version.parse(proved).step if proved else -1,
                    starts=self._engine.starts,
                )
            )  # fmt: skip
            self._service.detail.update(detail(session.job if session else "", versions, self._engine.pid))
            await asyncio.sleep(CHOOSE_SECONDS)

    # --- with a job -------------------------------------------------------------------------------------------------

    async def _stay(self, job: str) -> None:
        """Work for `job` until it ends, its share is used up while another waits, or the service stops."""
        log.info("working for %s", job)
        session = self._session = JobSession(
            job, bus=self._bus, engine=self._engine, store=self._store, worker=self._service.id,
            slots=self._settings.slots, meters=self._meters, notice=self._notice(job),
        )  # fmt: skip
        self._last_job = job
        working = asyncio.create_task(session.run(), name=f"session {job}")
        stopping = asyncio.create_task(self._service.stopping.wait())
        leaving = asyncio.create_task(self._until_time_to_leave(session))
        try:
            await asyncio.wait({working, stopping, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done() and not working.done():
                await session.drain()
            await working
        finally:
            for task in (working, stopping, leaving):
                task.cancel()
            await asyncio.gather(working, stopping, leaving, return_exceptions=True)
            self._session = None
            if self._states.get(job, DELETED) in ("deleting", DELETED):
                self._store.forget(job)
            self._idle_since = time.monotonic()
            log.info("left %s", job)

    async def _until_time_to_leave(self, session: JobSession) -> None:
        """Tells the session to leave when that is right, and to give up when its job has ended."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            state = self._states.get(session.job, DELETED)
            if state in ENDED:
                await session.abandon()
                return
            if (state != "running" and not session.book.held) or await self._others_wait(session):
                session.leave()

    async def _others_wait(self, session: JobSession) -> bool:
        others = [job for job in self._running() if job != session.job]
        if not others:
            return False
        now, switch = time.monotonic(), self._engine.switch_seconds
        stayed, idle = session.stayed_and_idle(now)
        quantum = self._settings.quantum_seconds
        if not leaves(stayed=stayed, idle=idle, quantum=quantum, switch=switch, offers=[Offer("any", 1)]):
            return False
        offers = await self._offers(in_turn(others, session.job))
        return leaves(stayed=stayed, idle=idle, quantum=quantum, switch=switch, offers=offers)

    def _notice(self, job: str) -> Callable[[str], Awaitable[None]]:
        async def tell(text: str) -> None:
            await self._service.event(job, "notice", {"level": "warning", "text": f"{self._service.id}: {text}"})

        return tell

    # --- without a job ----------------------------------------------------------------------------------------------

    def _running(self) -> list[str]:
        return [job for job, state in self._states.items() if state == "running"]

    async def _choose(self) -> str | None:
        return choose(await self._offers(in_turn(self._running(), self._last_job)))

    async def _offers(self, jobs: list[str]) -> list[Offer]:
        """What each job has for a worker that comes now; jobs without weights or scheduler have no offer."""
        found = await asyncio.gather(*(self._offer(job) for job in jobs))
        return [offer for offer in found if offer is not None]

    async def _offer(self, job: str) -> Offer | None:
        """Asks as a worker that is leaving, so that the scheduler does not count on it."""
        ask = AskLeases(
            worker=self._service.id, job=job, version="", slots=self._settings.slots, free_slots=0, draining=True
        )
        try:
            if await self._bus.get(topics.WEIGHTS.name, subject=topics.weights_subject(job)) is None:
                return None
            data = await self._bus.request(topics.lease_subject(job), encode(ask), timeout_seconds=PROBE_SECONDS)
            return Offer(job, decode(GrantLeases, data).waiting)
        except (BusError, BadMessage) as error:
            log.debug("no offer from %s: %s", job, error)
            return None

    async def _rest(self) -> None:
        if self._engine.alive and time.monotonic() - self._idle_since > self._settings.engine_idle_seconds:
            log.info("no job for %g s: stopping the engine", self._settings.engine_idle_seconds)
            await self._engine.stop()
        stopping = asyncio.create_task(self._service.stopping.wait())
        await asyncio.wait({stopping}, timeout=CHOOSE_SECONDS)
        stopping.cancel()
