"""What becomes of a sample whose lease ended without a trajectory, and of a job too many of whose samples die. Pure."""

from __future__ import annotations

from services.scheduler.leases import Returned
from services.scheduler.ledger_view import UNCOUNTED_RETURNS, LedgerView, SampleHistory
from shared.wire.messages import GaveUp, Requeued

MAX_REASON = 500
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 10.0


def verdict(history: SampleHistory, returned: Returned, max_attempts: int) -> Requeued | GaveUp:
    """Another try, or none. A return that blames the worker does not count, unless it happens again and again: then
    it may well be the sample that kills workers."""
    reason = returned.reason[:MAX_REASON]
    counts = returned.counts or history.returns >= UNCOUNTED_RETURNS
    if counts and history.failures + 1 >= max_attempts:
        attempts = [*history.tries, f"{returned.attempt}: {reason}"]
        return GaveUp(epoch=0, sample=returned.key.id, error=reason, attempts=attempts)
    return Requeued(
        epoch=0,
        sample=returned.key.id,
        attempt=returned.attempt,
        reason=reason,
        worker=returned.worker,
        counts=counts,
    )


def pause_seconds(failures: int) -> float:
    """How long a failed sample is left alone: what broke it may pass."""
    return 0.0 if failures <= 0 else min(FIRST_PAUSE_SECONDS * 2 ** (failures - 1), LONGEST_PAUSE_SECONDS)


def too_many_dead(view: LedgerView, max_dead_rate: float) -> str:
    """Empty, or why the job has to fail."""
    if view.dead_rate() <= max_dead_rate:
        return ""
    return (
        f"{view.died} of {view.issued} groups lost a sample for good (limits.max_dead_rate is {max_dead_rate:g}); "
        f"the newest error: {view.newest_error or 'unknown'}"
    )
