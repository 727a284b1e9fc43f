"""One job's buffer while this process holds the role: streams in, batches and settlements out.

    consumes  ledger.<job>.*, scored.<job>.*.* (headers)     both from their first record at each start
    answers   batch.<job>                                    the ledger's record first, then the reply
    writes    ledger.<job>.replay-buffer                     batched, dropped, dead, retired
    deletes   scored.<job>.<group>.*                         settled, and covered by the oldest kept checkpoint

Every decision is the pure core's; here are the clock, the waiting and the order: record, then answer; settle, then
delete. Each loop looks at the state, acts, and waits for a change.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from services.replay_buffer.buffer import Buffer, read_headers
from services.replay_buffer.selection import Answer, Form, Policy, Ready, Refused, Wait, answer, batch
from services.replay_buffer.settlement import settlement
from shared.wire import topics
from shared.wire.bus.api import Bus, Stored
from shared.wire.bus.signal import Signal
from shared.wire.ledger import Fenced, Ledger
from shared.wire.messages import (
    AskBatch,
    BadMessage,
    Batched,
    BatchReply,
    Dead,
    Dropped,
    LedgerRecord,
    Retired,
    Scored,
    Trained,
    decode,
    encode,
)

log = logging.getLogger(__name__)
ROLE = "replay-buffer"
PACE_LOOK_SECONDS = 0.25
Notice = Callable[[str, str], Awaitable[None]]  # level, text: for people


class Holding:
    """`run` is one epoch of the role for one job; a new one is made for each."""

    def __init__(
        self,
        bus: Bus,
        job: str,
        holder: str,
        policy: Policy,
        *,
        retain: bool,
        cancelling: Callable[[], bool],
        notice: Notice,
        long_poll_seconds: float = 1.0,
        quiet_seconds: float = 45.0,
    ) -> None:
        self.buffer = Buffer(job, policy.staleness)
        self.changed = Signal()
        self._bus = bus
        self._job = job
        self._policy = policy
        self._retain = retain
        self._cancelling = cancelling
        self._notice = notice
        self._long_poll_seconds = long_poll_seconds
        self._quiet_seconds = quiet_seconds
        self._ledger = Ledger(bus, job, ROLE, holder, self._apply)
        self._stream = topics.scored(job).name
        self._read_to = 0
        self._read = 0
        self._enough_since: float | None = None
        self._asked_at = self._scored_at = 0.0
        self._waste = Signal()

    def gauges(self) -> dict[str, float]:
        return {
            f"groups_open.{self._job}": float(len(self.buffer.view.open)),
            f"groups_complete.{self._job}": float(len(self.buffer.complete)),
            f"late_copies.{self._job}": float(self.buffer.late_copies),
        }

    async def run(self) -> None:
        began = time.monotonic()
        await self._ledger.open()
        await self._read_scored(live=False)
        view = self.buffer.view
        log.info(
            "job %s: rebuilt from %d ledger records and %d scored samples in %.2f s: %d groups open, %d complete, "
            "next batch is of step %d",
            self._job, view.records, self._read, time.monotonic() - began, len(view.open), len(self.buffer.complete),
            self.buffer.next_step,
        )  # fmt: skip
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ledger.follow())
            tasks.create_task(self._read_scored(live=True))
            tasks.create_task(self._settle())
            tasks.create_task(self._tell_when_quiet())
            if not self._retain:
                tasks.create_task(self._delete())
            stop = await self._bus.serve(topics.batch_subject(self._job), self.on_ask)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await stop()

    # --- in ---

    def _apply(self, sequence: int, record: LedgerRecord) -> None:
        self.buffer.read(sequence, record)
        if isinstance(record, Batched):
            self._enough_since = None  # the pace is counted anew for each step
        self._after_change()
        if isinstance(record, Trained | Retired | Dropped | Dead):
            self._waste.notify()

    async def _read_scored(self, *, live: bool) -> None:
        follow = self._bus.follow(
            self._stream,
            subject=topics.scored_train_filter(self._job),
            from_sequence=self._read_to + 1,
            headers_only=True,
            live=live,
        )
        async for stored in follow:
            self._read_to = stored.sequence
            self._read += 1
            await self._take(stored)

    async def _take(self, stored: Stored) -> None:
        try:
            sample = read_headers(self._job, stored.subject, stored.sequence, stored.headers)
        except BadMessage as error:
            log.error("job %s: scored message %d set aside: %s", self._job, stored.sequence, error)
            return
        if not sample.valid and not sample.error:
            sample = replace(sample, error=await self._why_invalid(stored.sequence))
        self._scored_at = time.monotonic()
        if self.buffer.add(sample):
            self._after_change()
        else:
            self._waste.notify()

    async def _why_invalid(self, sequence: int) -> str:
        """The grader's own words; they stand in the body."""
        stored = await self._bus.get(self._stream, sequence=sequence)
        if stored is None:
            return "the score is invalid (its body is gone)"
        try:
            return decode(Scored, stored.data).score.error or "the score is invalid"
        except BadMessage as error:
            return f"the score is invalid and cannot be read: {error}"

    def _after_change(self) -> None:
        if len(self.buffer.complete) < self._policy.groups_per_step:
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = time.monotonic()
        self.changed.notify()

    # --- out ---

    async def on_ask(self, data: bytes) -> bytes:
        """Answer a trainer; one that has to wait is kept a moment, so that a batch is handed over once it is there."""
        ask = decode(AskBatch, data)
        self._asked_at = time.monotonic()
        deadline = self._asked_at + self._long_poll_seconds
        try:
            if isinstance(self._answer(ask), Refused):
                await self._ledger.append(lambda: None)  # never refuse on an old view of the ledger: read it all
            while True:
                said = self._answer(ask)
                if isinstance(said, Form):
                    await self._ledger.append(lambda: self._batch(ask))
                    continue
                remaining = deadline - time.monotonic()
                if not isinstance(said, Wait) or remaining <= 0:
                    return encode(self._reply(said))
                await self.changed.wait(min(remaining, PACE_LOOK_SECONDS) if said.paced else remaining)
        except Fenced as fenced:
            return encode(self._reply(Wait(f"this holder is being replaced: {fenced}")))

    def _answer(self, ask: AskBatch) -> Answer:
        since = self._enough_since
        return answer(
            self.buffer,
            self._policy,
            trainer_epoch=ask.trainer_epoch,
            step=ask.step,
            waited_seconds=0.0 if since is None else time.monotonic() - since,
            cancelling=self._cancelling(),
        )

    def _batch(self, ask: AskBatch) -> Batched | None:
        """The record, decided once more on everything that stands in the ledger by now."""
        said = self._answer(ask)
        return batch(self.buffer, said.groups, ask.trainer_epoch) if isinstance(said, Form) else None

    def _reply(self, said: Ready | Wait | Refused) -> BatchReply:
        complete = len(self.buffer.complete)
        match said:
            case Ready(sequence):
                return BatchReply(status="ready", sequence=sequence, complete_groups=complete)
            case Wait(reason):
                return BatchReply(status="wait", reason=reason, complete_groups=complete)
            case Refused(reason):
                return BatchReply(status="refused", reason=reason, complete_groups=complete)

    async def _settle(self) -> None:
        """Write what follows from what is known, record by record."""
        while True:
            record = self._settlement()
            if record is None:
                await self.changed.wait()
            elif await self._ledger.append(self._settlement) is not None:
                await self._tell(record)

    def _settlement(self) -> Dead | Dropped | Retired | None:
        return settlement(self.buffer, self._policy, cancelling=self._cancelling())

    async def _tell(self, record: Dead | Dropped | Retired) -> None:
        match record:
            case Dead():
                first, error = record.samples[0], record.errors[0]
                others = f" and {len(record.samples) - 1} more" if len(record.samples) > 1 else ""
                log.warning("job %s: dead: %s%s: %s", self._job, first, others, error)
                await self._notice("warning", f"sample {first}{others} is dead: {error}")
            case Dropped():
                log.info("job %s: dropped %d samples: %s", self._job, len(record.samples), record.reason)
            case Retired():
                log.info("job %s: steps %d..%d are trained and retired", self._job, record.first, record.last)

    async def _delete(self) -> None:
        """Delete the messages that nobody will ask for again; also those that a broker's crash brought back."""
        while True:
            groups = sorted(self.buffer.deletable())
            if not groups:
                await self._waste.wait()
            for number in groups:
                self.buffer.deleted(number)  # before: a copy that arrives meanwhile is seen again
                await self._bus.purge(self._stream, f"scored.{self._job}.{number}.*")

    async def _tell_when_quiet(self) -> None:
        """A trainer that waits while nothing is scored is told to people, once a silence."""
        self._scored_at = time.monotonic()
        told_of = 0.0
        while True:
            await asyncio.sleep(self._quiet_seconds / 4)
            now = time.monotonic()
            silence, asked = now - self._scored_at, now - self._asked_at < self._quiet_seconds
            if not asked or silence < self._quiet_seconds or told_of == self._scored_at:
                continue
            said = self._answer(AskBatch(trainer_epoch=self.buffer.view.trainer_epoch, step=self.buffer.next_step))
            if isinstance(said, Wait):
                told_of = self._scored_at
                text = f"nothing was scored for {silence:.0f} s while the trainer waits: {said.reason}"
                log.warning("job %s: %s", self._job, text)
                await self._notice("warning", text)
