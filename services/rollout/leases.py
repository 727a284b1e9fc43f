"""What this worker holds and what it has to report: the worker's half of the lease protocol. Pure.

    grant -> held -> (progress) -> ended -> reported in an ask -> confirmed by that ask's answer

A report stays until an answer has confirmed that the scheduler read it. A revoked lease is forgotten: the scheduler
knows. Everything held is named in every ask, since what is not named goes to someone else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.wire.messages import EVAL, AskLeases, Ended, Held, Lease, message_id

HOLDING_SECONDS = 1.0  # the scheduler takes a worker for dead after three
FAILED_SECONDS = 0.5


def key_of(lease: Lease | Held | Ended) -> str:
    """Names one attempt at one sample."""
    return message_id(lease.sample, lease.attempt)


@dataclass
class LeaseBook:
    """All leases of one job."""

    held: dict[str, Lease] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    @property
    def holds_evaluation(self) -> bool:
        return any(lease.sample_class == EVAL for lease in self.held.values())

    @property
    def empty(self) -> bool:
        """Nothing held and nothing left to report."""
        return not self.held and not self.ended

    def grant(self, leases: Iterable[Lease]) -> list[Lease]:
        """Take leases; those that are held already are not given again."""
        fresh = [lease for lease in leases if key_of(lease) not in self.held]
        for lease in fresh:
            self.held[key_of(lease)] = lease
            self.tokens[key_of(lease)] = 0
        return fresh

    def progress(self, key: str, tokens: int) -> int:
        """Note how many tokens an attempt has; how many of them are new."""
        if key not in self.held:
            return 0
        new = max(0, tokens - self.tokens[key])
        self.tokens[key] += new
        return new

    def end(self, key: str, error: str = "", *, counts: bool = True) -> None:
        """The attempt is over: its trajectory is stored (no error), or it failed. Nothing to say of a revoked one."""
        lease = self.held.pop(key, None)
        if lease is not None:
            del self.tokens[key]
            self.ended[key] = Ended(sample=lease.sample, attempt=lease.attempt, error=error, counts=counts)

    def revoke(self, revoked: Iterable[Held]) -> list[str]:
        """Forget what the scheduler took back; the keys that were held until now."""
        gone = [key for each in revoked if (key := key_of(each)) in self.held]
        for key in gone:
            del self.held[key], self.tokens[key]
        return gone

    def confirm(self, ask: AskLeases) -> None:
        """The scheduler has answered `ask`, so it has read its reports."""
        for ended in ask.ended:
            self.ended.pop(key_of(ended), None)

    def forget(self) -> None:
        """Drop everything: there is nobody left to report to."""
        self.held.clear()
        self.tokens.clear()
        self.ended.clear()

    def ask(self, *, worker: str, job: str, version: str, slots: int, free_slots: int, draining: bool) -> AskLeases:
        held = [
            Held(sample=lease.sample, attempt=lease.attempt, tokens=self.tokens[key])
            for key, lease in self.held.items()
        ]
        return AskLeases(
            worker=worker, job=job, version=version, slots=slots, free_slots=free_slots, held=held,
            ended=list(self.ended.values()), draining=draining,
        )  # fmt: skip


@dataclass(frozen=True)
class LastAsk:
    """What the last ask was answered, as far as it decides when to ask again."""

    answered: bool = False
    wanted: int = 0  # slots that were free
    granted: int = 0
    waiting: int = 0
    hint: float = FAILED_SECONDS

    @property
    def eager(self) -> bool:
        """Whether a slot that becomes free is worth an ask at once: something waits, and as far as is known for us."""
        return self.answered and self.waiting > 0 and (self.granted > 0 or self.wanted == 0)

    def pause_seconds(self, free_slots: int) -> float:
        """How long to wait for something to happen. A full worker only shows that it lives."""
        if not self.answered:
            return FAILED_SECONDS
        return HOLDING_SECONDS if free_slots == 0 else max(0.05, min(self.hint, HOLDING_SECONDS))
