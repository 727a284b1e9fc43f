"""Reading samples as a person would: text, reward, versions, the step that trained them, and one sample's whole life.

Bodies come from `scored`; they are deleted once trained and covered by the oldest kept checkpoint, unless the job has
`retain: true`. What became of a sample stays in the ledger for as long as the job exists.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

from shared.wire import topics
from shared.wire.bus.api import Bus, NotFound, Stored
from shared.wire.ledger import read_ledger
from shared.wire.messages import (
    BadMessage,
    Batched,
    LedgerRecord,
    SampleKey,
    Scored,
    Trajectory,
    decode,
    to_plain,
)
from shared.wire.messages import array as view

JOBS_REMEMBERED = 32
OPEN, SPLIT = 0, -1


class StepIndex:
    """Which step's batch a group is in: four bytes a group, read on from the ledger at each question.

    Only a cache of what the ledger says; a gateway without it is slower, never wrong.
    """

    def __init__(self, job: str) -> None:
        self.job = job
        self._sequence = 0
        self._steps = array("i")
        self._ledger_sequences: dict[int, int] = {}

    async def catch_up(self, bus: Bus) -> None:
        try:
            async for sequence, _, record in read_ledger(bus, self.job, from_sequence=self._sequence + 1):
                self._sequence = sequence
                self.add(sequence, record)
        except NotFound:
            return

    def add(self, sequence: int, record: LedgerRecord) -> None:
        if not isinstance(record, Batched):
            return
        self._ledger_sequences[record.step] = sequence
        for sample in record.samples:
            group = SampleKey.parse(sample.sample).group
            if group >= len(self._steps):
                self._steps.extend([OPEN] * (group + 1 - len(self._steps)))
            self._steps[group] = record.step

    def step_of(self, group: int) -> int | None:
        step = self._steps[group] if group < len(self._steps) else OPEN
        return step or None

    async def batch(self, bus: Bus, step: int) -> Batched | None:
        """The recorded batch of `step`."""
        sequence = self._ledger_sequences.get(step)
        if sequence is None:
            return None
        async for _, _, record in read_ledger(bus, self.job, from_sequence=sequence):
            return record if isinstance(record, Batched) else None
        return None


@dataclass(frozen=True)
class Page:
    """Samples, newest first; `next_before` continues with older ones."""

    samples: list[dict[str, Any]]
    next_before: int | None
    stored: int


class SampleReader:
    """Answers the questions about samples for all jobs of one gateway."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._indexes: OrderedDict[str, StepIndex] = OrderedDict()

    async def _index(self, job: str) -> StepIndex:
        index = self._indexes.setdefault(job, StepIndex(job))
        self._indexes.move_to_end(job)
        while len(self._indexes) > JOBS_REMEMBERED:
            self._indexes.popitem(last=False)
        await index.catch_up(self._bus)
        return index

    async def page(
        self, job: str, *, sample_class: str | None, step: int | None, limit: int, before: int | None
    ) -> Page:
        """Stored samples, newest first; with `step`: those of its batch."""
        index = await self._index(job)
        stream = topics.scored(job).name
        if step is not None:
            batch = await index.batch(self._bus, step)
            sequences = [] if batch is None else [s.sequence for s in batch.samples]
        else:
            sequences = await self._newest(stream, sample_class, before)
        # `sequences` runs from the oldest to the newest
        if step is not None and before is not None:
            sequences = [sequence for sequence in sequences if sequence < before]
        chosen = sorted(sequences, reverse=True)[:limit]
        try:
            bodies = [stored for stored in await self._bus.get_many(stream, chosen) if stored is not None]
        except NotFound:
            bodies = []
        more = len(sequences) > limit
        return Page(
            [describe(stored, index) for stored in bodies], chosen[-1] if more and chosen else None, len(sequences)
        )

    async def _newest(self, stream: str, sample_class: str | None, before: int | None) -> list[int]:
        found: deque[int] = deque(maxlen=1_000_000)
        try:
            async for stored in self._bus.follow(stream, headers_only=True, live=False):
                if before is not None and stored.sequence >= before:
                    break
                if sample_class is None or stored.headers.get("Sample-Class", "train") == sample_class:
                    found.append(stored.sequence)
        except NotFound:
            return []
        return list(found)


def describe(stored: Stored, index: StepIndex) -> dict[str, Any]:
    """A scored message as a person reads it."""
    try:
        scored = decode(Scored, stored.data)
        trajectory = decode(Trajectory, scored.trajectory)
    except BadMessage as error:
        return {"sample": stored.headers.get("Sample", ""), "sequence": stored.sequence, "unreadable": str(error)}
    key = trajectory.key
    return {
        **describe_trajectory(trajectory),
        "sequence": stored.sequence,
        "scored_at": stored.at,
        "reward": scored.score.total,
        "components": scored.score.components,
        "valid": scored.score.valid,
        "error": scored.score.error,
        "step": None if key.eval_round is not None else index.step_of(key.group),
    }


def describe_trajectory(trajectory: Trajectory) -> dict[str, Any]:
    """What was asked, what was answered, by whom, with which weights."""
    versions: dict[str, int] = {}
    for segment in trajectory.segments:
        for span in segment.spans:
            versions[span.version] = versions.get(span.version, 0) + span.end - span.start
    return {
        "sample": trajectory.sample,
        "attempt": str(trajectory.attempt),
        "sample_class": trajectory.sample_class,
        "row": plain_row(trajectory.row),
        "text": trajectory.text,
        "finish_reason": trajectory.finish_reason,
        "tokens": trajectory.trained_tokens(),
        "versions": versions,
        "mean_logprob": mean_logprob(trajectory),
        "worker": trajectory.worker,
        "seconds": round(trajectory.finished_at - trajectory.started_at, 3),
        "sampling": to_plain(trajectory.sampling),
        "digests": to_plain(trajectory.digests),
    }


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """The row's fields that JSON can say; bytes only by their length."""
    return {k: f"<{len(v)} bytes>" if isinstance(v, bytes) else v for k, v in row.items()}


def mean_logprob(trajectory: Trajectory) -> float | None:
    """Mean behaviour log-probability of the trained tokens: how sure the model was of its answer."""
    total, count = 0.0, 0
    for segment in trajectory.segments:
        column = segment.columns.get("behaviour") or segment.columns.get("raw")
        if column is None:
            continue
        values = view(column, "<f4")[view(segment.mask, "u1") != 0]
        values = values[values == values]  # without NaN
        total += float(values.sum())
        count += len(values)
    return round(total / count, 4) if count else None
