"""One job's versions: snapshots in, announcements out, what nobody needs removed.

    consumes  snapshot.<job> (last value)     from the trainer
              ledger.<job>.trainer            `trained`: the newest durable step
    produces  weights.<job> (last value)      by compare-and-set; never a version before the announced one

What is announced first loses a version from `kept`, and only then are its files removed. Blocking work on files runs
in one thread, in the order of asking.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

from services.weight_broadcast.file_thread import FileThread
from services.weight_broadcast.folders import BadSnapshot
from services.weight_broadcast.holds import Holds
from services.weight_broadcast.store import Store
from services.weight_broadcast.versions import in_time, may_follow, retained
from shared.wire import topics
from shared.wire.bus.api import Bus, Conflict, NotFound, Stored
from shared.wire.bus.signal import Signal
from shared.wire.ledger import read_record
from shared.wire.messages import BadMessage, FileEntry, Snapshot, Trained, Version, Weights, decode, encode

log = logging.getLogger(__name__)
Notice = Callable[[str, str], Awaitable[None]]
TEND_SECONDS = 1.0
LEDGER_POLL_SECONDS = 0.5


class JobWeights:
    """`run` serves one job until cancelled."""

    def __init__(
        self,
        bus: Bus,
        job: str,
        store: Store,
        holds: Holds,
        *,
        host: str,
        url: str,
        files: FileThread,
        notice: Notice,
        learned_by: float,
    ) -> None:
        self.announced: Weights | None = None
        self.present: set[Version] = set()
        self._bus = bus
        self._job = job
        self._store = store
        self._holds = holds
        self._host = host
        self._url = url
        self._files = files
        self._notice = notice
        self._learned_by = learned_by  # until then nothing is removed: not every process has been heard
        self._sequence = 0
        self._durable_step = -1
        self._changed = Signal()

    async def run(self) -> None:
        await self._restore()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_snapshots())
            tasks.create_task(self._follow_trained())
            tasks.create_task(self._tend())

    def gauges(self) -> dict[str, float]:
        step = -1 if self.announced is None else self.announced.version.step
        return {f"version_step.{self._job}": float(step), f"versions_kept.{self._job}": float(len(self.present))}

    # --- in ---

    async def _restore(self) -> None:
        """Serve again what was announced, at the same places where that is possible."""
        began = time.monotonic()
        await self._load_announced()
        if self.announced is not None:
            here = await self._files.run(partial(self._store.versions, self._job))
            wanted = retained(here | {self.announced.version}, self.announced.version, self.announced.kept)
            for version in sorted(wanted):
                files = self.announced.files if version == self.announced.version else None
                await self._files.run(partial(self._store.restore, self._job, version, files))
            self._durable_step = self.announced.durable_step
        self.present = await self._files.run(partial(self._store.versions, self._job))
        if self.announced is not None:
            log.info(
                "job %s: version %s is announced, %d versions are here, read in %.2f s",
                self._job, self.announced.version, len(self.present), time.monotonic() - began,
            )  # fmt: skip

    async def _follow_snapshots(self) -> None:
        stream = topics.SNAPSHOTS.name
        async for stored in self._bus.follow(stream, subject=topics.snapshot_subject(self._job)):
            try:
                snapshot = decode(Snapshot, stored.data)
            except BadMessage as error:
                await self._refuse(f"a snapshot of {self._job} cannot be read: {error}")
                continue
            if snapshot.job != self._job:
                await self._refuse(f"a snapshot on {stored.subject} says that it is of job {snapshot.job}")
            elif may_follow(snapshot.version, self._announced_version, announced_is_lost=self._announced_is_lost):
                await self._take(snapshot, stored)

    async def _take(self, snapshot: Snapshot, stored: Stored) -> None:
        began = time.monotonic()
        try:
            place = await self._files.run(partial(self._store.admit, snapshot))
        except BadSnapshot as error:
            newest = await self._bus.get(topics.SNAPSHOTS.name, subject=stored.subject)
            if newest is not None and newest.sequence > stored.sequence:
                log.info("job %s: version %s was replaced before it was read", self._job, snapshot.version)
                return
            keeps = f"version {self._announced_version} stays" if self.announced else "there is no other yet"
            await self._refuse(f"version {snapshot.version} is refused: {error}; {keeps}")
            return
        self.present.add(snapshot.version)
        if await self._announce(snapshot.version, snapshot.files, place):
            log.info(
                "job %s: version %s at %s, %.1f MB in %.2f s", self._job, snapshot.version, place,
                sum(entry.size for entry in snapshot.files) / 1e6, time.monotonic() - began,
            )  # fmt: skip
        self._changed.notify()

    async def _follow_trained(self) -> None:
        stream, subject = topics.ledger(self._job).name, topics.ledger_subject(self._job, "trainer")
        async for stored in self._follow_once_there(stream, subject):
            record = read_record(self._job, stored)
            if isinstance(record, Trained) and record.last > self._durable_step:
                self._durable_step = record.last
                if stored.pending == 0:
                    self._changed.notify()

    async def _follow_once_there(self, stream: str, subject: str) -> AsyncIterator[Stored]:
        while True:
            with contextlib.suppress(NotFound):
                await self._bus.last_sequence(stream)
                break
            await asyncio.sleep(LEDGER_POLL_SECONDS)  # the scheduler makes it with the job's first record
        async for stored in self._bus.follow(stream, subject=subject):
            yield stored

    # --- out ---

    async def _tend(self) -> None:
        """Keep the announcement true, and remove what nobody needs any more."""
        while True:
            if self.announced is not None:
                await self._tend_once(self.announced)
            await self._changed.wait(TEND_SECONDS)

    async def _tend_once(self, announced: Weights) -> None:
        place = await self._files.run(partial(self._store.folder, self._job, announced.version, announced.files))
        if place is None:
            self.present.discard(announced.version)
        else:
            self.present.add(announced.version)
        await self._announce(announced.version, announced.files, place)
        gone = self.present - self._retained()
        for version in sorted(gone):
            await self._files.run(partial(self._store.remove, self._job, version))
            log.debug("job %s: version %s removed", self._job, version)
        self.present -= gone
        if gone:
            version = (self.announced or announced).version
            await self._files.run(partial(self._store.clean, self._job, self._retained(), version))

    async def _announce(self, version: Version, files: list[FileEntry], place: Path | None) -> bool:
        """Announce `version` as it is now, unless that stands already or a later one was announced meanwhile."""
        while True:
            current = self.announced
            if version != self._announced_version and not may_follow(
                version, self._announced_version, announced_is_lost=self._announced_is_lost
            ):
                return False
            kept = sorted(self._retained(version), key=in_time)
            weights = Weights(
                job=self._job,
                version=version,
                files=files,
                host=self._host,
                local_path="" if place is None else str(place),
                urls=[f"{self._url}/{self._job}/{version}"],
                kept=kept,
                durable_step=self._durable_step,
            )
            if weights == current:
                return False
            try:
                ack = await self._bus.publish(
                    topics.weights_subject(self._job), encode(weights), expected_last_subject_sequence=self._sequence
                )
            except Conflict:
                await self._load_announced()
                continue
            self.announced, self._sequence = weights, ack.sequence
            return True

    async def _load_announced(self) -> None:
        stored = await self._bus.get(topics.WEIGHTS.name, subject=topics.weights_subject(self._job))
        if stored is not None:
            self.announced, self._sequence = decode(Weights, stored.data), stored.sequence

    async def _refuse(self, text: str) -> None:
        log.error("job %s: %s", self._job, text)
        await self._notice("error", text)

    # --- state ---

    @property
    def _announced_version(self) -> Version | None:
        return None if self.announced is None else self.announced.version

    @property
    def _announced_is_lost(self) -> bool:
        return self.announced is not None and self.announced.version not in self.present

    def _retained(self, announced: Version | None = None) -> set[Version]:
        """What is kept once `announced` (else what is announced now) is the announced version."""
        now = time.monotonic()
        if now < self._learned_by:
            return set(self.present)
        return retained(self.present, announced or self._announced_version, self._holds.held(self._job, now))
