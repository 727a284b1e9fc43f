"""The balance of a job, computed from its streams alone: no cache, no counter, nothing that a service says of itself.

Flow: fold the ledger; look which samples lie in `trajectory`, then in `scored` (this order, since a score is stored
before its trajectory is acknowledged: a moving sample is seen twice, never missed); fold what the ledger got meanwhile;
then say where the rest is. Reads a job of any length in memory that follows what is in flight.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Any

from gateway.ledger_fold import IDS_SHOWN, LedgerFold, Place
from shared.wire import topics
from shared.wire.bus.api import Bus, NotFound, Stored
from shared.wire.messages import BadMessage, JobRecord, SampleKey, decode_record


@dataclass
class Audit:
    """issued = trained + dropped + dead + in flight; `balanced` when every check below holds as well."""

    job: str
    state: str
    balanced: bool
    ledger_sequence: int
    issued: int
    trained: int
    dropped: int
    dead: int
    in_flight: int
    in_flight_where: dict[str, int]
    dropped_reasons: dict[str, int]
    requeued_reasons: dict[str, int]
    masked: int
    steps: dict[str, int]
    staleness_bound: int
    age_histogram: dict[str, int]  # tokens by the age of their sample's oldest
    checkpoint: str
    evaluation_samples_stored: int
    problem_count: int = 0
    problems: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Sightings:
    """What the streams hold of samples that the ledger does not settle."""

    in_trajectory: set[tuple[int, int]] = field(default_factory=set)
    in_scored: set[tuple[int, int]] = field(default_factory=set)
    unissued: dict[int, str] = field(default_factory=dict)
    missing_bodies: dict[int, tuple[int, str, str]] = field(default_factory=dict)  # sequence -> step, id, digest
    altered: list[str] = field(default_factory=list)
    evaluation_samples: int = 0


async def audit_job(bus: Bus, record: JobRecord) -> Audit:
    """The audit of one job, running or ended."""
    staleness = int(record.spec.get("algorithm", {}).get("staleness", 0))
    fold = LedgerFold(record.id, staleness)
    await _fold_ledger(bus, fold)
    seen = Sightings()
    async for stored in _headers(bus, topics.trajectories(record.id).name):
        _sight(stored, fold, seen, seen.in_trajectory)
    seen.missing_bodies = {
        sample.sequence: (step, sample.sample, sample.digest)
        for step, batch in fold.batches.items()
        for sample in batch.samples
    }
    async for stored in _headers(bus, topics.scored(record.id).name):
        _sight(stored, fold, seen, seen.in_scored)
        _check_body(stored, seen)
    await _fold_ledger(bus, fold)
    return conclude(fold, seen, record.state)


def conclude(fold: LedgerFold, seen: Sightings, state: str) -> Audit:
    """The audit from what was read: places the open samples and names what is lost. Pure."""
    where = {"waiting": 0, "trajectory": 0, "scored": 0, "given_up": 0, "batched": 0}
    unsettled: list[str] = []
    for group, index, place in fold.open_samples():
        if place == Place.BATCHED:
            where["batched"] += 1
        elif place == Place.GAVE_UP:
            where["given_up"] += 1
        elif place != Place.WAITING:
            continue
        elif (group, index) in seen.in_scored:
            where["scored"] += 1
        elif (group, index) in seen.in_trajectory:
            where["trajectory"] += 1
        else:
            where["waiting"] += 1
        if place != Place.BATCHED or state == "completed":
            unsettled.append(fold.sample_id(group, index))
    if unsettled and state in ("completed", "cancelled"):
        text = f"{len(unsettled)} samples were never settled though the job is {state}"
        fold.report("lost", text, unsettled)
    _report_sightings(fold, seen, state)
    in_flight = sum(fold.counts[place] for place in (Place.WAITING, Place.GAVE_UP, Place.BATCHED))
    return Audit(
        job=fold.job,
        state=state,
        balanced=fold.problem_count == 0 and in_flight == sum(where.values()),
        ledger_sequence=fold.sequence,
        issued=fold.issued,
        trained=fold.counts[Place.TRAINED],
        dropped=fold.counts[Place.DROPPED],
        dead=fold.counts[Place.DEAD],
        in_flight=in_flight,
        in_flight_where=where,
        dropped_reasons=dict(fold.dropped_reasons),
        requeued_reasons=dict(fold.requeued_reasons),
        masked=fold.masked,
        steps={"batched": fold.batched_step, "trained": fold.trained_step, "retired": fold.retired_step},
        staleness_bound=fold.staleness,
        age_histogram={str(age): count for age, count in sorted(fold.ages.items())},
        checkpoint=fold.checkpoint,
        evaluation_samples_stored=seen.evaluation_samples,
        problem_count=fold.problem_count,
        problems=[asdict(problem) for problem in fold.problems],
    )


def _report_sightings(fold: LedgerFold, seen: Sightings, state: str) -> None:
    unissued = [sample for group, sample in seen.unissued.items() if not fold.is_issued(group)]
    if unissued:
        fold.report("unknown", "the streams hold samples of groups that the ledger never issued", unissued)
    if seen.altered:
        fold.report("altered", "scored samples differ from the digest recorded in their batch", seen.altered)
    # A batch's bodies must stay until no kept checkpoint lies before it. When the job has ended, nothing falls back.
    needed = fold.trained_step if state in ("completed", "cancelled") else fold.oldest_kept_step
    gone = [
        sample for step, sample, _ in seen.missing_bodies.values() if step > needed and step not in fold.given_up_steps
    ]
    if gone:
        fold.report("lost", f"{len(gone)} batched samples are no longer in the scored stream", gone)


async def _fold_ledger(bus: Bus, fold: LedgerFold) -> None:
    """Reads on. What other readers refuse (a gap, a record that cannot be read) is a finding here."""
    try:
        async for stored in bus.follow(topics.ledger(fold.job).name, from_sequence=fold.sequence + 1, live=False):
            try:
                record = decode_record(stored.data)
            except BadMessage as error:
                fold.unreadable(stored.sequence, f"{stored.subject}: {error}")
            else:
                fold.apply(stored.sequence, record)
    except NotFound:  # the job has not begun
        return


async def _headers(bus: Bus, stream: str) -> AsyncIterator[Stored]:
    try:
        async for stored in bus.follow(stream, headers_only=True, live=False):
            yield stored
    except NotFound:
        return


def _sight(stored: Stored, fold: LedgerFold, seen: Sightings, into: set[tuple[int, int]]) -> None:
    sample = stored.headers.get("Sample", "")
    try:
        key = SampleKey.parse(sample)
    except BadMessage:
        fold.report("unknown", f"{stored.subject} holds a message without a sample id", [sample])
        return
    if key.eval_round is not None:
        seen.evaluation_samples += 1
    elif fold.is_open(key.group):
        into.add((key.group, key.index))
    elif not fold.is_issued(key.group) and len(seen.unissued) < IDS_SHOWN * 1000:
        # Most likely issued after the ledger was read; decided when the rest of the ledger is known.
        seen.unissued.setdefault(key.group, sample)
        into.add((key.group, key.index))


def _check_body(stored: Stored, seen: Sightings) -> None:
    expected = seen.missing_bodies.pop(stored.sequence, None)
    if expected is None:
        return
    _, sample, digest = expected
    if stored.headers.get("Sample") != sample or stored.headers.get("Digest", digest) != digest:
        seen.altered.append(sample)
