"""Answers the workers of one job, and deals with what their reports bring about.

consumes  lease.<job> (AskLeases); ledger records and answers by way of `JobState`
produces  GrantLeases; ledger records `issued`, `requeued`, `gave_up`
stalls    while the broker does not store ledger records: workers ask again

Everything that changes leases happens under one lock, so an ask sees the whole of the one before. A worker has one ask
on its way at a time; a lease that its next ask does not name never reached it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from services.scheduler.demonstrations import demonstration
from services.scheduler.job_state import JobState
from services.scheduler.leases import Returned
from services.scheduler.leasing import Waiting, decide, pins
from services.scheduler.lookups import stored
from services.scheduler.verdicts import pause_seconds, verdict
from shared.job.seeds import sampling_seed
from shared.wire.bus.api import Bus, StreamFull
from shared.wire.ledger import Ledger
from shared.wire.messages import (
    AskLeases,
    GaveUp,
    GrantLeases,
    Issued,
    Lease,
    Requeued,
    SampleKey,
    Sampling,
    Version,
    body_headers,
    decode,
    encode,
    message_id,
)
from shared.wire.topics import trajectory_subject

log = logging.getLogger(__name__)
Clock = Callable[[], float]
MAX_REPLY_BYTES = 512 * 1024  # of prompts in one answer; at least one lease always goes


class LeaseDesk:
    """`news` is set when a report came; `steady` is a clock that never turns back, `wall` dates what is published."""

    def __init__(
        self,
        bus: Bus,
        ledger: Ledger,
        state: JobState,
        news: asyncio.Event,
        *,
        holder: str,
        steady: Clock = time.monotonic,
        wall: Clock = time.time,
    ) -> None:
        self._bus, self._ledger, self._state, self._news, self._holder = bus, ledger, state, news, holder
        self._steady, self._wall = steady, wall
        self._lock = asyncio.Lock()
        self._trouble: Exception | None = None

    async def on_ask(self, data: bytes) -> bytes:
        ask = decode(AskLeases, data)
        async with self._lock:
            try:
                return encode(await self._answer(ask))
            except Exception as error:
                self._trouble = error  # raised again where it ends the job's task, not only this answer
                raise
            finally:
                self._news.set()

    async def advance(self) -> None:
        """Everything that follows from time and from what was read: dead workers, returns, new groups."""
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble
        async with self._lock:
            self._state.returns.extend(self._state.table.expire(self._steady()))
            await self._settle_and_issue()

    async def take_over(self, silent_seconds: float) -> int:
        """After a restart: look for what was finished meanwhile; the rest is left alone until its worker must have
        reported it. Returns how many samples were found finished."""
        state, now = self._state, self._steady()
        for group in state.view.open:
            state.open_group(group, doubtful=True, not_before=now + silent_seconds)
            for index, history in state.view.open[group].histories.items():
                if history.gave_up:
                    state.work.lose(SampleKey(state.job, group, index))
        found = await stored(self._bus, state.work.doubtful())
        for key in found:
            state.work.finish(key, now)
        return len(found)

    async def look_again(self, older_than_seconds: float) -> None:
        """Finished long ago and still not settled: is it there? A trajectory that was set aside as unreadable is
        nowhere, and its sample has to be generated again."""
        state, now = self._state, self._steady()
        works = [state.work, *(each.work for each in state.rounds.open.values())]
        async with self._lock:
            keys = [key for work in works for key in work.finished_before(now - older_than_seconds)]
            found = await stored(self._bus, keys)
            for key in keys:
                work = state.work_of(key)
                if work is not None and key in found:
                    work.confirm(key, now)
                elif work is not None:
                    log.warning("%s was reported finished and is in no stream: it waits again", key.id)
                    work.unfinish(key)

    # --- one ask ----------------------------------------------------------------------------------------------------

    async def _answer(self, ask: AskLeases) -> GrantLeases:
        state, now = self._state, self._steady()
        report = state.table.report(ask, now, state.wants)
        for key in report.adopted:
            if work := state.work_of(key):
                work.lease(key)
        for key in report.finished:
            if work := state.work_of(key):
                work.finish(key, now)
        state.returns.extend(report.returned)
        state.token_rate.add(report.new_tokens, now)
        await self._settle_and_issue()
        pin = self._pinned().get(ask.worker)
        return GrantLeases(
            scheduler_epoch=self._ledger.epoch,
            leases=await self._grant(ask),
            revoked=report.revoked,
            pin_version="" if pin is None else str(pin),
            waiting=state.work.num_waiting + state.rounds.samples_left,
            engine_dtype=state.spec.engine.dtype,
            deterministic=state.spec.deterministic,
            context_length=state.material.prompts.context_length,
            ask_again_seconds=min(0.5, max(0.1, 0.01 * len(state.table.workers))),
        )

    async def _grant(self, ask: AskLeases) -> list[Lease]:
        state = self._state
        if state.job_state != "running" or ask.worker not in state.table.workers:
            return []
        leases: list[Lease] = []
        size = 0
        while len(leases) < ask.free_slots and size < MAX_REPLY_BYTES:
            now = self._steady()
            waiting = Waiting(
                training=() if state.supervised else state.work.waiting(),
                oldest_step=state.oldest_step,
                evaluation=state.rounds.waiting(),
                evaluated=state.rounds.version,
            )
            views = state.table.views(ask.worker, ask.free_slots - len(leases), self._pinned())
            chosen = [grant.key for grant in decide(views, waiting, now)]
            if not chosen:
                break
            found = await stored(self._bus, [key for key in chosen if self._doubtful(key)])
            for key in chosen:
                work = state.work_of(key)
                if work is None or not state.wants(key) or not work.is_waiting(key):
                    continue  # closed while it was looked up
                if key in found:
                    work.finish(key, now)
                elif size < MAX_REPLY_BYTES:
                    lease = self._lease(key, ask.worker, now)
                    work.lease(key)
                    leases.append(lease)
                    size += sum(len(each.token_ids) for each in lease.prefix)
        return leases

    def _lease(self, key: SampleKey, worker: str, now: float) -> Lease:
        state, spec = self._state, self._state.spec
        row = state.row_of(key)
        greedy = key.eval_round is not None and state.rounds.open[key.eval_round].round.mode == "greedy"
        drawn = spec.sampling
        sampling = Sampling(
            temperature=0.0 if greedy else drawn.temperature,
            top_p=1.0 if greedy else drawn.top_p,
            top_k=-1 if greedy else drawn.top_k,
            max_tokens=drawn.max_tokens,
            stop=list(drawn.stop),
            stop_token_ids=state.material.prompts.stop_token_ids,
            seed=sampling_seed(spec.seed, key.id),
        )
        cut = sampling.top_p < 1.0 or sampling.top_k > 0
        return Lease(
            sample=key.id,
            attempt=state.table.grant(key, worker, now),
            sample_class="train" if key.eval_round is None else "eval",
            prefix=[state.material.prompts.prompt(row)],
            sampling=sampling,
            deadline_seconds=spec.limits.lease_seconds,
            digests=state.material.prompts.digests(row),
            row=row.fields,
            ask_sampling_mask=cut,
        )

    def _doubtful(self, key: SampleKey) -> bool:
        work = self._state.work_of(key)
        return work is not None and work.is_doubtful(key)

    def _pinned(self) -> dict[str, Version]:
        """Which workers an open round holds at its version."""
        rounds = self._state.rounds
        if rounds.version is None:
            return {}
        chosen = pins(self._state.table.views(), rounds.version, rounds.samples_left)
        return dict.fromkeys(chosen, rounds.version)

    # --- what follows -----------------------------------------------------------------------------------------------

    async def _settle_and_issue(self) -> None:
        state = self._state
        state.versions.report(worker.version for worker in state.table.workers.values())
        state.forget_closed()
        while state.returns:
            await self._take_back(state.returns[0])
            state.returns.popleft()
        while state.admissible() and await self._issue():
            pass
        if state.supervised and state.job_state == "running":
            await self._demonstrate()

    async def _take_back(self, returned: Returned) -> None:
        """A lease ended without a trajectory, as far as its worker said. If one is stored all the same it counts."""
        state, key, now = self._state, returned.key, self._steady()
        work = state.work_of(key)
        if work is None or not work.wants(key):
            return
        if await stored(self._bus, [key]):
            work.finish(key, now)
            return
        if key.eval_round is not None:
            state.rounds.failed(key, returned.counts, now + pause_seconds(int(returned.counts)))
            return

        def decide_record() -> Requeued | GaveUp | None:
            if not state.view.wants(key.group, key.index):
                return None
            history = state.view.history(key.group, key.index)
            return verdict(history, returned, state.spec.limits.max_attempts)

        await self._ledger.append(decide_record)
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

        def decide_record() -> Issued | None:
            if not state.admissible() or state.view.issued != group:
                return None
            return Issued(
                epoch=0,
                group=group,
                row=row.index,
                row_digest=row.digest,
                n=state.spec.samples_per_group,
                version_step=state.applied_step,
            )

        if await self._ledger.append(decide_record) is None:
            return False
        if group in state.view.open:
            state.rows[group] = row
            state.open_group(group)
        return True

    async def _demonstrate(self) -> None:
        """Supervised: what waits is published as it stands in the data."""
        state, now = self._state, self._steady()
        keys = [each.key for each in state.work.waiting() if each.not_before <= now]
        found = await stored(self._bus, [key for key in keys if self._doubtful(key)])
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
