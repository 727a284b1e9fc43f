"""Who gets what: the one decision `(workers, waiting, now) -> leases`. Pure; a simulator drives it with its own clock.

The policy is three small functions, each the place where a finer one goes:

    may_evaluate, may_train   which kind of work a worker may have   (versions; later: fair share, affinity)
    in_order                  which sample comes first               (oldest group; later: longest expected work)
    capacity                  how much a worker takes in one answer  (its free slots; later: load guards)

Evaluation comes before training, since an open round holds workers at one version; what it leaves free is filled with
training, so that engines stay full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from shared.wire.messages import SampleKey, Version


@dataclass(frozen=True)
class WorkerView:
    """A live worker. `free_slots` is what it asks for now; workers that are not asking have 0."""

    worker: str
    version: Version | None
    slots: int
    free_slots: int
    pinned_to: Version | None = None
    draining: bool = False


@dataclass(frozen=True)
class Candidate:
    """A sample that waits, and the moment before which it is left alone."""

    key: SampleKey
    not_before: float = 0.0


@dataclass(frozen=True)
class Waiting:
    """All that waits, each kind by age. `evaluated`: the version of the open round. `oldest_step`: the oldest version
    that may still make training tokens."""

    training: Iterable[Candidate]
    oldest_step: int
    evaluation: Iterable[Candidate] = ()
    evaluated: Version | None = None


@dataclass(frozen=True)
class Grant:
    worker: str
    key: SampleKey


def decide(workers: Sequence[WorkerView], waiting: Waiting, now: float) -> list[Grant]:
    """Leases for the workers that ask. No sample twice; no worker over its capacity."""
    room = {worker.worker: capacity(worker) for worker in workers}
    grants: list[Grant] = []
    for candidates, able in (
        (waiting.evaluation, [worker for worker in workers if may_evaluate(worker, waiting)]),
        (waiting.training, [worker for worker in workers if may_train(worker, waiting)]),
    ):
        takers = [worker.worker for worker in able if room[worker.worker]]
        ready = in_order(candidates, now) if takers else iter(())
        while takers and (candidate := next(ready, None)) is not None:
            taker = max(takers, key=lambda worker: room[worker])
            grants.append(Grant(taker, candidate.key))
            room[taker] -= 1
            if not room[taker]:
                takers.remove(taker)
    return grants


def capacity(worker: WorkerView) -> int:
    """How many leases a worker may get in one answer."""
    return 0 if worker.draining else max(0, worker.free_slots)


def may_evaluate(worker: WorkerView, waiting: Waiting) -> bool:
    """Only exactly the version that the round is about."""
    return waiting.evaluated is not None and worker.version == waiting.evaluated


def may_train(worker: WorkerView, waiting: Waiting) -> bool:
    """A version that is not too old, and no worker on its way to another one: what it made just before it turned back
    would be older than the batch allows."""
    return (
        worker.version is not None
        and worker.version.step >= waiting.oldest_step
        and worker.pinned_to in (None, worker.version)
    )


def in_order(candidates: Iterable[Candidate], now: float) -> Iterator[Candidate]:
    """Oldest group first, as the candidates come; those that must be left alone for a while are passed over."""
    return (candidate for candidate in candidates if candidate.not_before <= now)


def pins(workers: Sequence[WorkerView], version: Version, samples_left: int) -> set[str]:
    """Which workers to hold at `version` for an open round: those that hold it already first, then those furthest
    behind (they have to load something anyway), until their slots cover what is left."""

    def cost(worker: WorkerView) -> tuple[bool, Version, str]:
        return worker.version != version, worker.version or Version(-1, 0), worker.worker

    chosen: set[str] = set()
    slots = 0
    for worker in sorted((w for w in workers if not w.draining), key=cost):
        if slots >= samples_left:
            break
        chosen.add(worker.worker)
        slots += worker.slots
    return chosen
