"""Keeps samples coming, each exactly once: issues groups, takes leases back, finds out what is finished already.

consumes  `JobState` as the ledger and the workers' reports have left it
produces  ledger records `issued`, `requeued`, `gave_up`; for a supervised job the demonstrations themselves
stalls    while the broker does not store; what was not written stays where it was and is tried again

Not safe for two callers at once: `LeaseDesk` calls it under its lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from services.scheduler.demonstrations import demonstration
from services.scheduler.job_state import JobState
from services.scheduler.leases import Returned
from services.scheduler.lookups import stored
from services.scheduler.verdicts import pause_seconds, verdict
from shared.wire.bus.api import Bus, StreamFull
from shared.wire.ledger import Ledger
from shared.wire.messages import GaveUp, Issued, Requeued, SampleKey, body_headers, encode, message_id
from shared.wire.topics import trajectory_subject

log = logging.getLogger(__name__)
Clock = Callable[[], float]


class Supply:
    """`holder` signs demonstrations; `steady` is a clock that never turns back, `wall` dates what is published."""

    def __init__(
        self,
        bus: Bus,
        ledger: Ledger,
        state: JobState,
        holder: str,
        steady: Clock = time.monotonic,
        wall: Clock = time.time,
    ) -> None:
        self._bus, self._ledger, self._state, self._holder = bus, ledger, state, holder
        self._steady, self._wall = steady, wall

    async def advance(self) -> None:
        """Everything that follows from what has been reported and read."""
        state = self._state
        state.versions.report(worker.version for worker in state.table.workers.values())
        state.forget_closed()
        while state.returns:
            await self._take_back(state.returns[0])
            state.returns.popleft()
        while state.admissible(self._steady()) and await self._issue():
            pass
        if state.supervised and state.job_state == "running":
            await self._demonstrate()

    async def take_over(self, silent_seconds: float) -> int:
        """After a restart: look for what was finished meanwhile; the rest is left alone until its worker must have
        reported it. Returns how many samples were found finished."""
        state, now = self._state, self._steady()
        for group, found in state.view.open.items():
            state.open_group(group, doubtful=True, not_before=now + silent_seconds)
            for index, history in found.histories.items():
                if history.gave_up:
                    state.work.lose(SampleKey(state.job, group, index))
        finished = await stored(self._bus, state.work.doubtful())
        for key in finished:
            state.work.finish(key, now)
        return len(finished)

    async def look_again(self, older_than_seconds: float) -> None:
        """Finished long ago and still not settled: is it there? A trajectory that was set aside as unreadable is
        nowhere, and its sample has to be generated again."""
        state, now = self._state, self._steady()
        works = [state.work, *(each.work for each in state.rounds.open.values())]
        keys = [key for work in works for key in work.finished_before(now - older_than_seconds)]
        found = await stored(self._bus, keys)
        for key in keys:
            work = state.work_of(key)
            if work is not None and key in found:
                work.confirm(key, now)
            elif work is not None:
                log.warning("%s was reported finished and is in no stream: it waits again", key.id)
                work.unfinish(key)

    async def _take_back(self, returned: Returned) -> None:
        """A lease ended without a trajectory, as far as its worker said. If one is stored all the same it counts."""
        state, key, now = self._state, returned.key, self._steady()
        work = state.work_of(key)
        if work is None or not state.wants(key):
            return
        if await stored(self._bus, [key]):
            work.finish(key, now)
            return
        if key.eval_round is not None:
            state.rounds.failed(key, returned.counts, now + pause_seconds(int(returned.counts)))
            return

        def decide() -> Requeued | GaveUp | None:
            if not state.view.wants(key.group, key.index):
                return None
            history = state.view.history(key.group, key.index)
            return verdict(history, returned, state.spec.limits.max_attempts)

        await self._ledger.append(decide)
        history = state.view.history(key.group, key.index)
        if history.gave_up:
            log.warning("%s given up: %s", key.id, returned.reason)
            work.lose(key)
        else:
            work.put_back(key, now + pause_seconds(history.failures) if returned.counts else 0.0)

    async def _issue(self) -> bool:
        """The next group, recorded before any of its samples may be leased."""
        state = self._state
        group = state.view.issued
        row = state.material.dataset.row_of(group)

        def decide() -> Issued | None:
            if not state.admissible(self._steady()) or state.view.issued != group:
                return None
            return Issued(
                epoch=0,
                group=group,
                row=row.index,
                row_digest=row.digest,
                n=state.spec.samples_per_group,
                version_step=state.applied_step,
            )

        if await self._ledger.append(decide) is None:
            return False
        if group in state.view.open:
            state.rows[group] = row
            state.open_group(group)
        return True

    async def _demonstrate(self) -> None:
        """Supervised: what waits is published as it stands in the data."""
        state, now = self._state, self._steady()
        keys = [each.key for each in state.work.waiting() if each.not_before <= now]
        found = await stored(self._bus, [key for key in keys if state.work.is_doubtful(key)])
        for key in keys:
            if key not in found:
                try:
                    await self._publish_demonstration(key)
                except StreamFull:
                    return  # back-pressure: the next round of the loop goes on
            state.work.finish(key, now)

    async def _publish_demonstration(self, key: SampleKey) -> None:
        state = self._state
        attempt = state.table.next_attempt()
        row = state.row_of(key)
        trajectory = demonstration(key, attempt, row, state.material.prompts, self._holder, self._wall())
        await self._bus.publish(
            trajectory_subject(key),
            encode(trajectory),
            message_id=message_id(key.id, attempt),
            headers=body_headers(trajectory),
        )
