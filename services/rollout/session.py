"""A worker's stay with one job: asks its scheduler for leases, generates them, keeps the weights current.

consumes  lease.<job> (answers), weights.<job>
produces  trajectory.<job>.<group>.<index>; lease.<job> (asks, at least one a second while it holds anything)
stalls    without leases when the scheduler has none, and while the engine starts; held samples go on meanwhile

Ends when it was told to leave and everything held is finished and reported; `drain` and `abandon` hurry that up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from services.rollout.attempts import ENGINE_DIED, Attempts
from services.rollout.engine import Engine
from services.rollout.keeper import VersionKeeper
from services.rollout.leases import LastAsk, LeaseBook
from services.rollout.meters import Meters
from services.rollout.weights import WeightsStore
from shared.wire import topics
from shared.wire.bus.api import Bus, BusError
from shared.wire.messages import BadMessage, GrantLeases, decode, encode

log = logging.getLogger("rollout")
ASK_SECONDS, LAST_ASK_SECONDS = 2.0, 0.8
REPORT_TRIES = 3
DRAINS = "worker drains"
STORE_SECONDS = 2.0


class JobSession:
    def __init__(
        self, job: str, *, bus: Bus, engine: Engine, store: WeightsStore, worker: str, slots: int, meters: Meters,
        notice: Callable[[str], Awaitable[None]],
    ) -> None:  # fmt: skip
        self.job, self.book = job, LeaseBook()
        self._opened = self._last_work = time.monotonic()
        self._began: float | None = None
        self._bus, self._engine, self._worker, self._slots, self._meters = bus, engine, worker, slots, meters
        self._leaving = self._draining = False
        self._last = LastAsk()
        self._wake = asyncio.Event()
        self._attempts: Attempts | None = None
        self.keeper = VersionKeeper(
            job, bus=bus, engine=engine, store=store, book=self.book, on_proved=self._on_proved,
            on_death=lambda _: self._fail_attempts(), notice=notice,
        )  # fmt: skip

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._attempts = Attempts(
                bus=self._bus, engine=self._engine, book=self.book, worker=self._worker, meters=self._meters,
                on_end=self._on_end, tasks=tasks,
            )  # fmt: skip
            helpers = [
                tasks.create_task(self.keeper.follow(), name=f"weights of {self.job}"),
                tasks.create_task(self.keeper.keep(), name=f"engine for {self.job}"),
            ]
            try:
                await self._ask_until_left()
            finally:
                for helper in helpers:
                    helper.cancel()

    def leave(self) -> None:
        """Take nothing new; end when what is held is done."""
        self._leaving = True
        self._wake.set()

    async def drain(self) -> None:
        """Leave now: what is not finished goes back, without blame."""
        self._draining = True
        self.leave()
        if self._attempts is not None:
            await self._attempts.return_all(DRAINS, STORE_SECONDS)
        self._wake.set()

    async def abandon(self) -> None:
        """The job has ended: nobody wants what is held, and nobody reads reports."""
        keys = list(self.book.held)
        self.book.forget()
        self.leave()
        if self._attempts is not None:
            await self._attempts.stop(keys)
            self._attempts.stop_publishing()
        self._wake.set()

    @property
    def free_slots(self) -> int:
        if self._leaving or not self.keeper.proved or not self._engine.alive:
            return 0
        return max(0, self._slots - len(self.book.held))

    def stayed_and_idle(self, now: float) -> tuple[float, float]:
        """Seconds with the job, and seconds without work, since its engine was ready: a start is no stay.

        An engine that cannot be had must not hold the worker, so after a failure the wait for it counts.
        """
        if self._began is None and not self.keeper.failed:
            return 0.0, 0.0
        began = self._opened if self._began is None else self._began
        return now - began, now - max(began, self._last_work)

    def _on_proved(self) -> None:
        if self._began is None:
            self._began = time.monotonic()
        self._wake.set()

    def _on_end(self) -> None:
        self.keeper.look_again()
        if self._last.eager or self._leaving:
            self._wake.set()

    def _fail_attempts(self) -> None:
        if self._attempts is not None:
            self._attempts.fail_all(ENGINE_DIED)

    async def _ask_until_left(self) -> None:
        tries = REPORT_TRIES
        while True:
            self._wake.clear()
            self._last = await self._ask()
            if self.book.held or self._last.waiting:
                self._last_work = time.monotonic()
            if self._leaving and not self.book.held:
                tries -= 1
                if self.book.empty or tries <= 0:
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._last.pause_seconds(self.free_slots)):
                    await self._wake.wait()

    async def _ask(self) -> LastAsk:
        """One ask. Slots are offered only behind the gate, so that no lease arrives while the engine changes."""
        if self.free_slots == 0 or self.keeper.gate.locked():
            return await self._exchange(0)
        async with self.keeper.gate:
            return await self._exchange(self.free_slots)

    async def _exchange(self, free_slots: int) -> LastAsk:
        ask = self.book.ask(
            worker=self._worker, job=self.job, version=self.keeper.proved, slots=self._slots, free_slots=free_slots,
            draining=self._draining or self._leaving,
        )  # fmt: skip
        try:
            seconds = LAST_ASK_SECONDS if self._draining else ASK_SECONDS
            data = await self._bus.request(topics.lease_subject(self.job), encode(ask), timeout_seconds=seconds)
            reply = decode(GrantLeases, data)
        except (BusError, BadMessage) as error:
            log.debug("no answer from the scheduler of %s: %s", self.job, error)
            return LastAsk()
        self.book.confirm(ask)
        self.keeper.take_terms(reply)
        assert self._attempts is not None
        revoked = self.book.revoke(reply.revoked)
        for lease in self.book.grant(reply.leases) if free_slots else ():
            self._attempts.start(lease)
        if revoked:
            await self._attempts.stop(revoked)
        return LastAsk(True, free_slots, len(reply.leases), reply.waiting, reply.ask_again_seconds)
