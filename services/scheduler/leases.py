"""The lease table: who works on what, until when, and which reports are news. Pure; the caller brings the clock.

A worker asks at least every second, naming all it holds. From that follows everything:

    ended, no error         its trajectory is stored: finished
    ended, error            the attempt failed (`counts`), or the lease was only returned
    held                    alive; more tokens than before extend the deadline
    leased, not named       the answer that granted it never arrived: the lease comes back
    silent                  the worker is dead: all its leases come back
    named, not leased       an earlier attempt or epoch: counted, and revoked; adopted instead, so that no tokens are
                            lost, if an earlier holder of this role granted it, or its worker was only thought dead
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from services.scheduler.leasing import WorkerView
from shared.wire.messages import AskLeases, Attempt, BadMessage, Held, SampleKey, Version

SILENT, NOT_RECEIVED, NO_PROGRESS, DRAINED = "worker silent", "lease not received", "no progress", "worker draining"


@dataclass
class LeaseState:
    key: SampleKey
    attempt: Attempt
    worker: str
    deadline: float
    tokens: int = 0


@dataclass
class WorkerState:
    """What a worker said last, and when."""

    version: Version | None
    slots: int
    free_slots: int
    draining: bool
    seen_at: float
    held: int = 0


@dataclass(frozen=True)
class Returned:
    """A lease that ended without a trajectory."""

    key: SampleKey
    attempt: Attempt
    worker: str
    reason: str
    counts: bool


@dataclass
class Report:
    """What one ask told."""

    finished: list[SampleKey] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    revoked: list[Held] = field(default_factory=list)
    adopted: list[SampleKey] = field(default_factory=list)
    stale: int = 0
    new_tokens: int = 0


class LeaseTable:
    """All leases and workers of one job."""

    def __init__(self, epoch: int, lease_seconds: float, silent_seconds: float) -> None:
        self.epoch = epoch
        self.lease_seconds, self.silent_seconds = lease_seconds, silent_seconds
        self.leases: dict[str, LeaseState] = {}
        self._of_worker: dict[str, set[str]] = {}
        self.workers: dict[str, WorkerState] = {}
        self.stale_reports = 0
        self._counter = 0
        self._missed: dict[str, Attempt] = {}  # taken from silent workers and not given to another yet

    def grant(self, key: SampleKey, worker: str, now: float) -> Attempt:
        """A new attempt at `key`, which must not be leased."""
        if key.id in self.leases:
            raise ValueError(f"{key.id} is leased already")
        attempt = self.next_attempt()
        self._missed.pop(key.id, None)
        self._put(LeaseState(key, attempt, worker, now + self.lease_seconds))
        return attempt

    def next_attempt(self) -> Attempt:
        """A number that is never used again."""
        self._counter += 1
        return Attempt(self.epoch, self._counter)

    def report(self, ask: AskLeases, now: float, wants: Callable[[SampleKey], bool]) -> Report:
        """Take what a worker says. `wants`: whether a sample is open, not finished and so worth a lease."""
        report = Report()
        named: set[str] = set()
        for ended in ask.ended:
            key, lease = self._find(ask, ended.sample)
            if key is None:
                report.stale += 1
                continue
            current = lease is not None and lease.attempt == ended.attempt and lease.worker == ask.worker
            report.stale += not current
            if current:
                self._pop(ended.sample)
            if not ended.error:
                report.finished.append(key)
                if not current and lease is not None:
                    self._pop(ended.sample)
            elif current:
                report.returned.append(Returned(key, ended.attempt, ask.worker, ended.error, ended.counts))
        for held in ask.held:
            key, lease = self._find(ask, held.sample)
            if key is None:
                report.stale += 1
                report.revoked.append(held)
                continue
            back = held.attempt.epoch < self.epoch or self._missed.get(held.sample) == held.attempt
            if lease is None and back and wants(key):
                lease = LeaseState(key, held.attempt, ask.worker, now + self.lease_seconds, held.tokens)
                self._put(lease)
                self._missed.pop(held.sample, None)
                report.adopted.append(key)
            if lease is None or lease.attempt != held.attempt or lease.worker != ask.worker:
                report.stale += 1
                report.revoked.append(held)
                continue
            if not wants(key):
                self._pop(held.sample)
                report.revoked.append(held)
                continue
            named.add(held.sample)
            if held.tokens > lease.tokens:
                report.new_tokens += held.tokens - lease.tokens
                lease.tokens = held.tokens
                lease.deadline = now + self.lease_seconds
        for sample in sorted(self._of_worker.get(ask.worker, set()) - named):
            lease = self._pop(sample)
            report.returned.append(Returned(lease.key, lease.attempt, ask.worker, NOT_RECEIVED, counts=False))
        self.stale_reports += report.stale
        self.workers[ask.worker] = WorkerState(
            parsed(ask.version), ask.slots, ask.free_slots, ask.draining, now, len(named)
        )
        if ask.draining and not ask.held:
            del self.workers[ask.worker]
        return report

    def expire(self, now: float) -> list[Returned]:
        """Leases of workers that have fallen silent, and leases without progress."""
        dead = {name for name, worker in self.workers.items() if now - worker.seen_at > self.silent_seconds}
        for name in dead:
            del self.workers[name]
        returned = []
        for sample, lease in list(self.leases.items()):
            if lease.worker not in self.workers:
                returned.append(Returned(lease.key, lease.attempt, lease.worker, SILENT, counts=False))
                self._missed[sample] = lease.attempt
                self._pop(sample)
            elif now > lease.deadline:
                reason = f"{NO_PROGRESS} for {self.lease_seconds:g} s after {lease.tokens} tokens"
                returned.append(Returned(lease.key, lease.attempt, lease.worker, reason, counts=True))
                self._pop(sample)
        return returned

    def revoke(self, unwanted: Callable[[SampleKey], bool]) -> list[LeaseState]:
        """Forget the leases of samples that nobody wants any more; their workers hear of it when they name them."""
        for sample in [sample for sample in self._missed if unwanted(SampleKey.parse(sample))]:
            del self._missed[sample]
        gone = [lease for lease in self.leases.values() if unwanted(lease.key)]
        for lease in gone:
            self._pop(lease.key.id)
        return gone

    def views(
        self, asking: str = "", free_slots: int = 0, pinned: dict[str, Version] | None = None
    ) -> list[WorkerView]:
        """Every live worker; only `asking` has free slots."""
        return [
            WorkerView(
                worker=name,
                version=state.version,
                slots=state.slots,
                free_slots=free_slots if name == asking else 0,
                pinned_to=(pinned or {}).get(name),
                draining=state.draining,
            )
            for name, state in self.workers.items()
        ]

    def _put(self, lease: LeaseState) -> None:
        self.leases[lease.key.id] = lease
        self._of_worker.setdefault(lease.worker, set()).add(lease.key.id)

    def _pop(self, sample: str) -> LeaseState:
        lease = self.leases.pop(sample)
        theirs = self._of_worker[lease.worker]
        theirs.discard(sample)
        if not theirs:
            del self._of_worker[lease.worker]
        return lease

    def _find(self, ask: AskLeases, sample: str) -> tuple[SampleKey | None, LeaseState | None]:
        """The sample, None when it is not one of this job, and its lease."""
        try:
            key = SampleKey.parse(sample)
        except BadMessage:
            return None, None
        return (key if key.job == ask.job else None), self.leases.get(sample)


def parsed(version: str) -> Version | None:
    """What a worker says it holds; None when it has proved nothing yet."""
    try:
        return Version.parse(version)
    except BadMessage:
        return None
