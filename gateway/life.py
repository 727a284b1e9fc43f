"""One sample's whole life, from `issued` to `retired`: every record and stored message that names it, in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.samples import StepIndex, describe, describe_trajectory
from shared.wire import topics
from shared.wire.bus.api import Bus, NotFound, Stored
from shared.wire.ledger import read_ledger
from shared.wire.messages import (
    BadMessage,
    Batched,
    Dead,
    Dropped,
    GaveUp,
    Issued,
    LedgerRecord,
    Requeued,
    Retired,
    SampleKey,
    Trained,
    Trajectory,
    decode,
)


@dataclass
class Life:
    """The sample's state, its moments in order, and its body where one is still stored."""

    sample: str
    known: bool = False
    place: str = "unknown"
    moments: list[dict[str, Any]] = field(default_factory=list)
    body: dict[str, Any] | None = None

    def add(self, at: float, what: str, **detail: Any) -> None:
        self.moments.append({"at": at, "what": what, **detail})


class LifeFold:
    """Picks from a ledger what concerns one sample. Pure."""

    def __init__(self, key: SampleKey) -> None:
        self.key = key
        self.life = Life(key.id)
        self._step: int | None = None

    def apply(self, sequence: int, at: float, record: LedgerRecord) -> None:
        id = self.key.id
        life = self.life
        match record:
            case Issued() if record.group == self.key.group and self.key.index < record.n:
                life.known, life.place = True, "waiting or leased"
                life.add(at, "issued", ledger=sequence, row=record.row, version_step=record.version_step)
            case Requeued() if record.sample == id:
                life.add(
                    at, "requeued", ledger=sequence, attempt=str(record.attempt), reason=record.reason,
                    worker=record.worker, counts=record.counts,
                )  # fmt: skip
            case GaveUp() if record.sample == id:
                life.place = "given up"
                life.add(at, "gave up", ledger=sequence, error=record.error, attempts=record.attempts)
            case Batched():
                for sample in record.samples:
                    if sample.sample == id:
                        self._step, life.place = record.step, "batched"
                        life.add(
                            at, "batched", ledger=sequence, step=record.step, use=sample.use, reward=sample.reward,
                            attempt=str(sample.attempt), oldest_step=sample.oldest_step,
                            scored_sequence=sample.sequence, masked=sample.masked,
                        )  # fmt: skip
            case Trained() if self._step is not None and record.first <= self._step <= record.last:
                life.place = "trained"
                life.add(at, "trained", ledger=sequence, step=self._step, checkpoint=record.checkpoint)
            case Retired() if self._step is not None and record.first <= self._step <= record.last:
                life.place = "trained and retired"
                life.add(at, "retired", ledger=sequence, step=self._step)
            case Dropped() if id in record.samples:
                life.place = "dropped"
                life.add(at, "dropped", ledger=sequence, reason=record.reason)
            case Dead() if id in record.samples:
                life.place = "dead"
                error = dict(zip(record.samples, record.errors, strict=False)).get(id, "")
                life.add(at, "dead", ledger=sequence, error=error)


async def sample_life(bus: Bus, key: SampleKey) -> Life:
    """Everything that the ledger and the streams hold of one sample."""
    fold = LifeFold(key)
    index = StepIndex(key.job)
    try:
        async for sequence, at, record in read_ledger(bus, key.job):
            index.add(sequence, record)
            if key.eval_round is None:
                fold.apply(sequence, at, record)
    except NotFound:
        pass
    life = fold.life
    trajectory = await _last(bus, topics.trajectories(key.job).name, topics.trajectory_subject(key))
    scored = await _last(bus, topics.scored(key.job).name, topics.scored_subject(key))
    if trajectory is not None:
        _add_trajectory(life, trajectory)
    if scored is not None:
        _add_scored(life, scored, index)
    life.moments.sort(key=lambda moment: float(moment["at"]))
    return life


def _add_trajectory(life: Life, stored: Stored) -> None:
    life.known = True
    if life.place in ("unknown", "waiting or leased"):
        life.place = "in trajectory"
    life.add(stored.at, "trajectory stored", sequence=stored.sequence, attempt=stored.headers.get("Attempt", ""))
    try:
        life.body = describe_trajectory(decode(Trajectory, stored.data))
    except BadMessage as error:
        life.body = {"unreadable": str(error)}


def _add_scored(life: Life, stored: Stored, index: StepIndex) -> None:
    life.known = True
    if life.place in ("unknown", "waiting or leased", "in trajectory"):
        life.place = "in scored"
    life.body = describe(stored, index)
    life.add(stored.at, "scored", sequence=stored.sequence, reward=life.body.get("reward"))


async def _last(bus: Bus, stream: str, subject: str) -> Stored | None:
    try:
        return await bus.get(stream, subject=subject)
    except NotFound:
        return None
