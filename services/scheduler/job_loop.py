"""One job's life in the process that holds its scheduler role.

    lock scheduler.<job> ──► model, data ──► streams ──► ledger: read all, open an epoch ──► what is finished already?
        ──► serve lease.<job> and steer ──► paused, completed, cancelled or failed

consumes  ledger.<job>, weights.<job>, scored.<job>.eval.>, events.<job>.evaluation (at start), the job's record
produces  ledger records, the job's state, events `evaluation`, `progress`, `notice`, `state`
stalls    while the broker is away; never for a worker
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

from services.scheduler.config import Settings
from services.scheduler.data.rows import DataError
from services.scheduler.evaluation import answer
from services.scheduler.job_state import JobState
from services.scheduler.lease_desk import LeaseDesk
from services.scheduler.leases import LeaseTable
from services.scheduler.ledger_view import LedgerView
from services.scheduler.loading import load_material
from services.scheduler.reporting import Figures, Reporter
from services.scheduler.steering import Steering
from services.scheduler.supply import Supply
from shared.job.limits import stream_bytes
from shared.job.spec import JobSpec
from shared.policy import ModelError
from shared.wire.jobs import ACTIVE_STATES, change_job, hold_role
from shared.wire.ledger import Ledger
from shared.wire.messages import (
    BadMessage,
    Event,
    JobRecord,
    LedgerRecord,
    SampleKey,
    Scored,
    Weights,
    decode,
)
from shared.wire.service import Service
from shared.wire.topics import (
    EVENTS,
    WEIGHTS,
    event_subject,
    job_streams,
    lease_subject,
    scored,
    scored_eval_filter,
    weights_subject,
)

log = logging.getLogger(__name__)
ROLE = "scheduler"


@dataclass
class JobLoop:
    """`newest` gives the job's record as it stands; `figures` are those of all jobs of this process."""

    service: Service[Settings]
    record: JobRecord
    newest: Callable[[], JobRecord]
    figures: Figures
    _news: asyncio.Event = field(default_factory=asyncio.Event)  # a record, a report, an answer or a version came in

    async def run(self) -> None:
        """Until the job has ended; waits while another process holds the role."""
        await hold_role(self.service.bus, self.record.id, ROLE, self.service.id, self._hold)

    async def _hold(self) -> None:
        spec = JobSpec.model_validate(self.record.spec)
        try:
            state, ledger = await self._open(spec)
            await self._live(state, ledger)
        except* (DataError, ModelError) as errors:
            await self._fail(first_line(errors))

    # --- begin ------------------------------------------------------------------------------------------------------

    async def _open(self, spec: JobSpec) -> tuple[JobState, Ledger]:
        """Streams before the first record, the ledger before any decision."""
        bus, job, settings = self.service.bus, self.record.id, self.service.settings
        material = await load_material(spec, settings.data_dir, self.record.digest)
        prompt_tokens = max(1, material.prompts.context_length - spec.sampling.max_tokens)
        await bus.declare(job_streams(job, stream_bytes(spec, prompt_tokens)))
        began = time.monotonic()
        view = LedgerView()

        def apply(sequence: int, record: LedgerRecord) -> None:
            view.apply(sequence, record)
            self._news.set()

        ledger = Ledger(bus, job, ROLE, self.service.id, apply)
        await ledger.open()
        table = LeaseTable(ledger.epoch, spec.limits.lease_seconds, settings.silent_seconds)
        state = JobState(job, spec, view, table, material, self.newest().state)
        state.rounds.doubtful = ledger.epoch > 1
        log.info(
            "job %s: epoch %d, %d records read in %.2f s: %d groups issued, %d open, %d settled, batched to step %d, "
            "trained to step %d",
            job,
            ledger.epoch,
            view.records,
            time.monotonic() - began,
            view.issued,
            len(view.open),
            len(view.settled),
            view.batched_step,
            view.trained_step,
        )
        return state, ledger

    async def _live(self, state: JobState, ledger: Ledger) -> None:
        bus, job, settings = self.service.bus, self.record.id, self.service.settings
        supply = Supply(bus, ledger, state, self.service.id)
        desk = LeaseDesk(bus, state, supply, self._news)
        steering = Steering(self.service, ledger, state, desk, self._news, self.newest)
        reporter = Reporter(self.service, state, self.figures)
        await self._read_evaluations(state)
        await self._follow_weights(state, live=False)
        await self._follow_answers(state, live=False)
        found = await supply.take_over(settings.silent_seconds)
        if state.view.open:
            log.info("job %s: %d samples of open groups are finished already", job, found)
        await steering.evaluate()
        stop_serving = await bus.serve(lease_subject(job), desk.on_ask)
        loops: list[Coroutine[Any, Any, None]] = [
            ledger.follow(),
            self._follow_weights(state),
            self._follow_answers(state),
            reporter.run(),
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(loop) for loop in loops]
                await steering.run()
                for task in running:
                    task.cancel()
        finally:
            await stop_serving()
            reporter.clear()

    # --- what is read -----------------------------------------------------------------------------------------------

    async def _read_evaluations(self, state: JobState) -> None:
        """Rounds that were recorded before."""
        subject = event_subject(self.record.id, "evaluation")
        async for stored in self.service.bus.follow(EVENTS.name, subject=subject, live=False):
            try:
                body = decode(Event, stored.data).body
                state.rounds.mark_recorded(int(body["round"]))
                state.note_evaluation(body)
            except (BadMessage, KeyError, TypeError, ValueError) as error:
                log.error("evaluation event %d of %s set aside: %s", stored.sequence, self.record.id, error)

    async def _follow_weights(self, state: JobState, live: bool = True) -> None:
        subject = weights_subject(self.record.id)
        async for stored in self.service.bus.follow(WEIGHTS.name, subject=subject, live=live):
            try:
                state.versions.announce(decode(Weights, stored.data))
                self._news.set()
            except BadMessage as error:
                log.error("announcement %d of %s set aside: %s", stored.sequence, self.record.id, error)

    async def _follow_answers(self, state: JobState, live: bool = True) -> None:
        """Graded evaluation answers, in stream order."""
        job = self.record.id
        first_component = state.spec.reward[0].name
        stream = scored(job).name
        async for stored in self.service.bus.follow(stream, subject=scored_eval_filter(job), live=live):
            _, _, _, number, prompt, index = stored.subject.split(".")
            key = SampleKey(job, int(prompt), int(index), int(number))
            try:
                found = answer(decode(Scored, stored.data).score, first_component)
            except BadMessage as error:
                log.error("evaluation answer %s set aside: %s", stored.subject, error)
                continue
            state.rounds.add_answer(key, found, time.monotonic())
            self._news.set()

    # --- end --------------------------------------------------------------------------------------------------------

    async def _fail(self, reason: str) -> None:
        """The job cannot go on; one line says why."""

        def failed(record: JobRecord) -> JobRecord | None:
            if record.state not in ACTIVE_STATES:
                return None
            return msgspec.structs.replace(record, state="failed", reason=reason)

        log.error("job %s failed: %s", self.record.id, reason)
        await change_job(self.service.bus, self.record.id, failed)
        await self.service.event(self.record.id, "state", {"state": "failed", "reason": reason})


def first_line(errors: BaseException) -> str:
    """What the first of these errors says."""
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return str(errors)
