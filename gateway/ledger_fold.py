"""The audit's pure core: one pass over a job's ledger that puts every sample in exactly one place.

Flow: `apply` takes each record in order and moves samples between places; a move that is not allowed is a problem
with the sample's id, never an exception. Memory follows what is open: a group whose samples are all settled shrinks to
a bit of an interval, and a batch is remembered only until no kept checkpoint could need it again.

A sample's places, and the moves between them:

    waiting ──────► batched ──► trained
      │  └► gave up    │ (a batch that will never be trained: job ended)
      └────────┴───────┴──────► dropped, dead
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from gateway.intervals import Intervals
from shared.wire.messages import (
    BadMessage,
    Batched,
    Dead,
    Dropped,
    Ending,
    EpochOpened,
    GaveUp,
    Issued,
    LedgerRecord,
    Requeued,
    Retired,
    SampleKey,
    Trained,
    batch_digest,
)

IDS_SHOWN = 20
PROBLEMS_SHOWN = 200


class Place(IntEnum):
    """Where the ledger alone says that a sample is."""

    WAITING = 0  # issued; the streams say whether it is leased, finished or scored
    GAVE_UP = 1  # the scheduler proposes `dead`, the buffer has not settled it
    BATCHED = 2  # in the batch of a step that no checkpoint covers yet
    TRAINED = 3
    DROPPED = 4
    DEAD = 5


SETTLED = frozenset({Place.TRAINED, Place.DROPPED, Place.DEAD})
# Which places a sample may come from. Dropping a batched sample means that its step will never be trained.
MAY_COME_FROM = {
    Place.GAVE_UP: frozenset({Place.WAITING}),
    Place.BATCHED: frozenset({Place.WAITING, Place.GAVE_UP}),
    Place.TRAINED: frozenset({Place.BATCHED}),
    Place.DROPPED: frozenset({Place.WAITING, Place.GAVE_UP, Place.BATCHED}),
    Place.DEAD: frozenset({Place.WAITING, Place.GAVE_UP}),
}


@dataclass
class Problem:
    """Something that must not be, with the first ids it concerns."""

    kind: str
    message: str
    samples: list[str] = field(default_factory=list)


def role_of(record: LedgerRecord) -> str:
    """Who alone may write this kind of record."""
    if isinstance(record, EpochOpened):
        return record.role
    if isinstance(record, Issued | Requeued | GaveUp | Ending):
        return "scheduler"
    return "trainer" if isinstance(record, Trained) else "replay-buffer"


class LedgerFold:
    """All that a balance needs to know of the records seen so far."""

    def __init__(self, job: str, staleness: int) -> None:
        self.job = job
        self.staleness = staleness
        self.sequence = 0
        self.counts: Counter[Place] = Counter()
        self.dropped_reasons: Counter[str] = Counter()
        self.requeued_reasons: Counter[str] = Counter()
        self.ages: Counter[int] = Counter()
        self.masked = 0
        self.epochs: Counter[str] = Counter()
        self.batched_step = 0
        self.trained_step = 0
        self.retired_step = 0
        self.oldest_kept_step = 0
        self.last_step: int | None = None
        self.checkpoint = ""
        self.newest_group = -1
        self.problems: list[Problem] = []
        self.problem_count = 0
        self.batches: dict[int, Batched] = {}
        self.given_up_steps: set[int] = set()  # batched, then dropped: never trained, so their bodies need not stay
        self._open: dict[int, bytearray] = {}
        self._closed = Intervals()
        self._moves = {
            EpochOpened: self._epoch, Issued: self._issued, Requeued: self._requeued, GaveUp: self._gave_up,
            Batched: self._batched, Trained: self._trained, Dropped: self._dropped, Dead: self._dead,
            Retired: self._retired, Ending: self._ending,
        }  # fmt: skip

    @property
    def issued(self) -> int:
        return sum(self.counts.values())

    def apply(self, sequence: int, record: LedgerRecord) -> None:
        """The next record; `sequence` is its place in the ledger stream."""
        self._advance(sequence)
        role = role_of(record)
        if not isinstance(record, EpochOpened) and record.epoch != self.epochs[role]:
            self.report(
                "fenced", f"record {sequence} was written by epoch {record.epoch} of {role} under {self.epochs[role]}"
            )
        self._moves[type(record)](record)  # type: ignore[operator]

    def unreadable(self, sequence: int, reason: str) -> None:
        """The next record cannot be read: whatever it says is missing from the balance."""
        self._advance(sequence)
        self.report("unreadable", f"record {sequence}: {reason}")

    def _advance(self, sequence: int) -> None:
        if sequence != self.sequence + 1:
            self.report("gap", f"ledger sequences {self.sequence + 1} to {sequence - 1} are missing")
        self.sequence = sequence

    def report(self, kind: str, message: str, samples: list[str] | None = None) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_SHOWN:
            self.problems.append(Problem(kind, message, (samples or [])[:IDS_SHOWN]))

    def open_samples(self) -> Iterator[tuple[int, int, Place]]:
        """(group, index, place) of every sample of a group that is not settled whole."""
        for group, places in self._open.items():
            for index, place in enumerate(places):
                yield group, index, Place(place)

    def is_open(self, group: int) -> bool:
        return group in self._open

    def is_issued(self, group: int) -> bool:
        return group in self._open or group in self._closed

    def sample_id(self, group: int, index: int) -> str:
        return SampleKey(self.job, group, index).id

    # --- one method a record ----------------------------------------------------------------------------------------

    def _epoch(self, record: EpochOpened) -> None:
        if record.epoch != self.epochs[record.role] + 1:
            self.report("epoch", f"epoch {record.epoch} of {record.role} follows {self.epochs[record.role]}")
        self.epochs[record.role] = max(record.epoch, self.epochs[record.role])

    def _issued(self, record: Issued) -> None:
        if self.is_issued(record.group):
            self.report("doubled", f"group {record.group} is issued twice", [self.sample_id(record.group, 0)])
            return
        if record.group != self.newest_group + 1:
            self.report("gap", f"group {record.group} follows group {self.newest_group}: groups are dense")
        self.newest_group = max(record.group, self.newest_group)
        self._open[record.group] = bytearray(record.n)
        self.counts[Place.WAITING] += record.n

    def _requeued(self, record: Requeued) -> None:
        if self._find(record.sample) is not None:
            self.requeued_reasons[record.reason] += 1

    def _gave_up(self, record: GaveUp) -> None:
        self._move([record.sample], Place.GAVE_UP, "given up")

    def _batched(self, record: Batched) -> None:
        if record.step != self.batched_step + 1:
            what = "batched twice" if record.step <= self.batched_step else f"batched after step {self.batched_step}"
            self.report("step", f"step {record.step} is {what}", [s.sample for s in record.samples])
        if self.last_step is not None and record.step > self.last_step:
            self.report("step", f"step {record.step} is batched though step {self.last_step} is the last")
        too_old = []
        for sample in record.samples:
            if sample.oldest_step < 0:  # a demonstration: no version made it
                continue
            age = record.step - 1 - sample.oldest_step
            self.ages[age] += sample.tokens
            if not 0 <= age <= self.staleness:
                too_old.append(sample.sample)
        if too_old:
            self.report("over age", f"step {record.step} uses samples over {self.staleness} versions old", too_old)
        self._move([s.sample for s in record.samples], Place.BATCHED, f"batched in step {record.step}")
        self.batches.setdefault(record.step, record)
        self.batched_step = max(record.step, self.batched_step)

    def _trained(self, record: Trained) -> None:
        if record.first > self.trained_step + 1:
            self.report("step", f"steps {self.trained_step + 1} to {record.first - 1} have no checkpoint")
        if record.last > self.batched_step:
            self.report("step", f"step {record.last} is trained but was never batched")
        self._check_digest(record)
        self.masked += len(record.masked)
        for step in range(self.trained_step + 1, min(record.last, self.batched_step) + 1):
            if step in self.batches:
                self._move([s.sample for s in self.batches[step].samples], Place.TRAINED, f"trained in step {step}")
        self.trained_step = max(record.last, self.trained_step)
        self.oldest_kept_step = max(record.oldest_kept_step, self.oldest_kept_step)
        self.checkpoint = record.checkpoint
        for step in [s for s in self.batches if s <= self.oldest_kept_step]:
            del self.batches[step]  # no kept checkpoint lies before it: never trained again

    def _check_digest(self, record: Trained) -> None:
        where = f"trained steps {record.first} to {record.last} (checkpoint {record.checkpoint})"
        if not record.digest:
            self.report("digest", f"{where} name no digest of their batches")
            return
        covered = [self.batches.get(step) for step in range(record.first, record.last + 1)]
        known = [batch for batch in covered if batch is not None]
        if len(known) < len(covered):
            self.report("digest", f"{where}: a batch they cover is not in the ledger, or too old to be trained again")
        elif batch_digest(known) != record.digest:
            self.report("digest", f"{where} were not trained on the recorded batches: digests differ")

    def _dropped(self, record: Dropped) -> None:
        if not record.reason:
            self.report("reason", f"record {self.sequence} drops samples without a reason", record.samples)
        moved = self._move(record.samples, Place.DROPPED, "dropped")
        gone = set(record.samples)
        for step, batch in self.batches.items():
            if step > self.trained_step and not gone.isdisjoint(s.sample for s in batch.samples):
                self.given_up_steps.add(step)
        self.dropped_reasons[record.reason or "(none)"] += moved

    def _dead(self, record: Dead) -> None:
        if len(record.errors) != len(record.samples):
            self.report("reason", f"record {self.sequence} names dead samples without an error each", record.samples)
        self._move(record.samples, Place.DEAD, "dead")

    def _retired(self, record: Retired) -> None:
        if record.last > self.trained_step:
            self.report("step", f"step {record.last} is retired though {self.trained_step} is the newest trained")
        self.retired_step = max(record.last, self.retired_step)

    def _ending(self, record: Ending) -> None:
        self.last_step = record.last_step

    # --- moving a sample --------------------------------------------------------------------------------------------

    def _move(self, samples: list[str], to: Place, what: str) -> int:
        """Moves each sample that may go there; reports the others. How many moved."""
        moved = 0
        doubled: list[str] = []
        for sample in samples:
            found = self._find(sample)
            if found is None:
                continue
            group, index = found
            places = self._open.get(group)
            came_from = Place(places[index]) if places is not None else None
            if places is None or came_from not in MAY_COME_FROM[to]:
                doubled.append(sample)
                continue
            places[index] = to
            self.counts[Place(came_from)] -= 1
            self.counts[to] += 1
            moved += 1
            if to in SETTLED and all(place in SETTLED for place in places):
                del self._open[group]
                self._closed.add(group)
        if doubled:
            self.report("doubled", f"record {self.sequence}: {what}, but already in another place", doubled)
        return moved

    def _find(self, sample: str) -> tuple[int, int] | None:
        """The sample's group and index, or None (reported) when it is no training sample that was issued."""
        try:
            key = SampleKey.parse(sample)
        except BadMessage:
            self.report("unknown", f"record {self.sequence} names something that is no sample id", [sample])
            return None
        if key.job != self.job or key.eval_round is not None or not self.is_issued(key.group):
            self.report("unknown", f"record {self.sequence} names a sample that was never issued", [sample])
            return None
        places = self._open.get(key.group)
        if places is not None and key.index >= len(places):
            self.report("unknown", f"record {self.sequence} names a sample beyond its group", [sample])
            return None
        return key.group, key.index
