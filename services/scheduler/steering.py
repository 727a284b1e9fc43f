"""Moves one job along: new groups, evaluation rounds, an early end, and the job's own state.

consumes  what `JobState` has been told; the job's record (pause, resume, cancel)
produces  ledger record `ending`, event `evaluation`, the states paused, completed, cancelled, failed
stalls    never: it wakes with every record and report, and every tick
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import msgspec

from services.scheduler.admission import data_ended
from services.scheduler.config import Settings
from services.scheduler.job_state import JobState
from services.scheduler.lease_desk import LeaseDesk
from services.scheduler.rounds import OpenRound
from shared.wire.jobs import ACTIVE_STATES, change_job
from shared.wire.ledger import Ledger
from shared.wire.messages import ENDED_STATES, Ending, Event, JobRecord, encode
from shared.wire.service import Service
from shared.wire.topics import event_subject

log = logging.getLogger(__name__)
SWEEP_SECONDS = 600.0
VERSION_PATIENCE_SECONDS = 30.0  # how long an open round waits for a version that nobody offers any more


class Steering:
    """`news` is set when something came in; `newest` gives the job's record as it stands."""

    def __init__(
        self,
        service: Service[Settings],
        ledger: Ledger,
        state: JobState,
        desk: LeaseDesk,
        news: asyncio.Event,
        newest: Callable[[], JobRecord],
    ) -> None:
        self._service, self._ledger, self._state, self._desk = service, ledger, state, desk
        self._news, self._newest = news, newest
        self._looked_at = self._swept_at = time.monotonic()

    async def run(self) -> None:
        """Until the job has ended."""
        state = self._state
        while True:
            self._news.clear()
            state.job_state = self._newest().state
            if state.job_state in ENDED_STATES:
                return
            await self._desk.advance()
            await self.evaluate()
            await self._end_early()
            await self._look_again()
            if (change := state.next_job_state()) is not None:
                await self._change(*change)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._service.settings.tick_seconds):
                    await self._news.wait()

    async def evaluate(self) -> None:
        """Close rounds that are complete, then open those that are due."""
        rounds, versions, now = self._state.rounds, self._state.versions, time.monotonic()
        for each in rounds.complete(now, versions.can_be_had, VERSION_PATIENCE_SECONDS):
            await self._record(each)
        while due := rounds.next_due(versions.newest_step):
            version = versions.of_step(due[0].step)
            if version is not None:
                rounds.open_rounds(due, version, now)
                log.info("job %s: evaluation of version %s begins", self._state.job, version)
                return
            for missed in due:
                log.warning("job %s: no version of step %d to evaluate", self._state.job, missed.step)
                await self._tell(rounds.body(missed, None))
                rounds.mark_recorded(missed.number)

    async def _record(self, done: OpenRound) -> None:
        body = self._state.rounds.body(done.round, done.version)
        await self._tell(body)
        self._state.rounds.mark_recorded(done.round.number)
        self._state.note_evaluation(body)
        log.info(
            "job %s: version %s %s: solve rate %s, reward %s, %d of %d answers",
            self._state.job,
            done.version,
            done.round.mode,
            body["solve_rate"],
            body["reward_mean"],
            body["graded"],
            body["samples"],
        )

    async def _tell(self, body: dict[str, object]) -> None:
        """Recorded once however often it is told, so that a restart may tell it again."""
        job = self._state.job
        event = Event(job=job, event="evaluation", at=time.time(), step=int(str(body["version_step"])), body=body)
        await self._service.bus.publish(
            event_subject(job, "evaluation"), encode(event), message_id=f"{job}/evaluation/{body['round']}"
        )

    async def _end_early(self) -> None:
        """The data ended, or an evaluation reached what the job was to stop at: the newest batch is the last."""
        state = self._state

        def ending() -> Ending | None:
            if state.view.ending is not None or state.view.batched_step >= state.plan.steps:
                return None
            if data_ended(state.view, state.plan) and state.view.batched_step:
                reason = f"the data ended after {state.spec.data.epochs} passes"
            elif state.goal_reached:
                reason = state.goal_reached
            else:
                return None
            return Ending(epoch=0, last_step=state.view.batched_step, reason=reason)

        if ending() is not None and await self._ledger.append(ending) is not None:
            last = state.view.ending
            log.info("job %s ends at step %d: %s", state.job, state.last_step, "" if last is None else last.reason)

    async def _look_again(self) -> None:
        """Now and then: is what was reported finished really there, and are there large bodies nobody points to?"""
        seconds = self._state.spec.limits.lease_seconds
        now = time.monotonic()
        if now - self._looked_at > seconds:
            self._looked_at = now
            await self._desk.look_again(seconds)
        if now - self._swept_at > SWEEP_SECONDS:
            self._swept_at = now
            await self._service.bus.sweep_objects(self._state.job, max(SWEEP_SECONDS, 4 * seconds))

    async def _change(self, to: str, reason: str) -> None:
        """The state that the job has come to by itself."""
        was = self._state.job_state

        def changed(record: JobRecord) -> JobRecord | None:
            if record.state != was or was not in ACTIVE_STATES:
                return None
            return msgspec.structs.replace(record, state=to, reason=reason)

        record = await change_job(self._service.bus, self._state.job, changed)
        self._state.job_state = record.state
        if record.state == to:
            log.log(logging.ERROR if to == "failed" else logging.INFO, "job %s is %s: %s", record.id, to, reason or "-")
            await self._service.event(record.id, "state", {"state": to, "reason": reason})
