"""Answers the workers of one job.

consumes  lease.<job> (AskLeases)
produces  GrantLeases
stalls    while the broker does not store ledger records: workers ask again

Everything that changes leases happens under one lock, so an ask sees the whole of the one before. A worker has one ask
on its way at a time; a lease that its next ask does not name never reached it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from services.scheduler.job_state import JobState
from services.scheduler.leasing import Waiting, decide, pins
from services.scheduler.lookups import stored
from services.scheduler.supply import Supply
from shared.job.seeds import sampling_seed
from shared.wire.bus.api import Bus
from shared.wire.messages import AskLeases, GrantLeases, Lease, SampleKey, Sampling, Version, decode, encode

MAX_REPLY_BYTES = 512 * 1024  # of prompts in one answer; at least one lease always goes


class LeaseDesk:
    """`news` is set when a report came; `steady` is a clock that never turns back."""

    def __init__(
        self,
        bus: Bus,
        state: JobState,
        supply: Supply,
        news: asyncio.Event,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus, self._state, self._supply, self._news, self._steady = bus, state, supply, news, steady
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
            await self._supply.advance()

    async def look_again(self, older_than_seconds: float) -> None:
        """Is what was reported finished long ago really stored?"""
        async with self._lock:
            await self._supply.look_again(older_than_seconds)

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
        await self._supply.advance()
        pin = self._pinned().get(ask.worker)
        return GrantLeases(
            scheduler_epoch=state.table.epoch,
            leases=await self._grant(ask),
            revoked=report.revoked,
            pin_version="" if pin is None else str(pin),
            waiting=state.num_waiting if state.job_state == "running" else 0,
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
                training=state.work.waiting() if state.more_batches and not state.supervised else (),
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
