"""Keeps the engine at the version that the job wants, for as long as the worker stays with the job.

consumes  weights.<job> (what is newest), the scheduler's answers (pins, flags), the engine's death
produces  an engine that holds the wanted version, proved
stalls    while an ask that may bring leases is on its way, and while evaluation samples run: nothing changes under them

In-flight training samples do not stall it: they are held between two tokens and go on with the new weights.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from services.rollout.backoff import Backoff
from services.rollout.engine import Engine
from services.rollout.errors import EngineError, WeightsError
from services.rollout.leases import LeaseBook
from services.rollout.switching import Flags, shape_of, wanted_version
from services.rollout.weights import WeightsStore
from shared.policy.errors import ModelError
from shared.policy.folder import open_folder
from shared.policy.tokenizer import Tokenizer
from shared.wire import topics
from shared.wire.bus.api import Bus
from shared.wire.messages import BadMessage, GrantLeases, Version, Weights, decode

log = logging.getLogger("rollout")


def newer(found: Weights, seen: Weights | None) -> bool:
    """A later trainer epoch replaces even a larger step: the older weights cannot be had any more."""
    return seen is None or (found.version.epoch, found.version.step) >= (seen.version.epoch, seen.version.step)


def flags_of(terms: GrantLeases) -> Flags:
    return Flags(terms.engine_dtype, terms.deterministic, terms.context_length)


def shape_in(folder: Path) -> str:
    try:
        return shape_of(open_folder(folder).config, Tokenizer.load(folder).digest)
    except ModelError as error:
        raise WeightsError(str(error)) from error


class VersionKeeper:
    """`gate` is held while leases may arrive and while the engine changes, so that neither happens under the other."""

    def __init__(
        self, job: str, *, bus: Bus, engine: Engine, store: WeightsStore, book: LeaseBook,
        on_proved: Callable[[], None], on_death: Callable[[str], None], notice: Callable[[str], Awaitable[None]],
    ) -> None:  # fmt: skip
        self.job, self.gate = job, asyncio.Lock()
        self.proved = ""
        self.loading = ""
        self._shape = ""  # of the job's model: the same for all its versions
        self.failed = False  # nothing has been proved since something went wrong
        self._bus, self._engine, self._store, self._book = bus, engine, store, book
        self._on_proved, self._on_death, self._notice = on_proved, on_death, notice
        self._announced: Weights | None = None
        self._terms: GrantLeases | None = None
        self._changed = asyncio.Event()
        self._backoff = Backoff()

    def take_terms(self, terms: GrantLeases) -> None:
        """What the scheduler's newest answer says about versions and flags."""
        before, self._terms = self._terms, terms
        if before is None or before.pin_version != terms.pin_version or flags_of(before) != flags_of(terms):
            self._changed.set()

    def look_again(self) -> None:
        """Something ended that may have stood in the way."""
        if self._wanted() != self.proved:
            self._changed.set()

    async def follow(self) -> None:
        """Note each announcement, for ever."""
        async for stored in self._bus.follow(topics.WEIGHTS.name, subject=topics.weights_subject(self.job)):
            try:
                found = decode(Weights, stored.data)
            except BadMessage as error:
                log.error("an announcement of weights for %s set aside: %s", self.job, error)
                continue
            if newer(found, self._announced):
                self._announced = found
                self._changed.set()

    async def keep(self) -> None:
        """Reach the wanted version, again and again, for ever. What fails is tried again later."""
        while True:
            self._changed.clear()
            try:
                await self._reach()
            except (EngineError, WeightsError, BadMessage) as error:
                self.loading = ""
                await self._pause(str(error))
                continue
            reason = await self._news()
            if reason:
                self.proved = ""
                self._on_death(reason)
                await self._pause(reason)

    async def _pause(self, trouble: str) -> None:
        self.failed = True
        delay = self._backoff.failed(time.monotonic())
        log.error("%s; again in %g s", trouble, delay)
        await self._notice(trouble)
        await asyncio.sleep(delay)

    async def _news(self) -> str:
        """Waits until something may have to be done; the reason if the engine has died."""
        changed = asyncio.ensure_future(self._changed.wait())
        died = asyncio.ensure_future(self._engine.died()) if self.proved else None
        try:
            await asyncio.wait({changed, died} if died else {changed}, return_when=asyncio.FIRST_COMPLETED)
            return died.result() if died is not None and died.done() else ""
        finally:
            changed.cancel()
            if died is not None:
                died.cancel()

    def _wanted(self) -> str:
        return wanted_version(
            pinned=self._terms.pin_version if self._terms else "",
            announced=self._announced.version if self._announced else None,
            holds_evaluation=self._book.holds_evaluation,
            holding=self.proved,
        )

    async def _reach(self) -> None:
        version, announced, terms = self._wanted(), self._announced, self._terms
        if announced is None or terms is None or not version or (version == self.proved and self._engine.alive):
            return
        self.loading = version
        folder = await self._store.fetch(announced, Version.parse(version))
        if not self._shape:
            self._shape = await asyncio.to_thread(shape_in, folder)
        async with self.gate:
            if self._wanted() != version:
                self._changed.set()
                return
            await self._engine.hold(
                self.job, flags=flags_of(terms), shape=self._shape, folder=folder, version=version,
                in_flight=bool(self._book.held),
            )  # fmt: skip
            self.proved, self.failed = version, False
        self.loading = ""
        self._on_proved()
        await asyncio.to_thread(self._store.prune, self.job, {version, str(announced.version)})
