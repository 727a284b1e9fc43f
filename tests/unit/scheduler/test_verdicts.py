from __future__ import annotations

from services.scheduler.leases import Returned
from services.scheduler.ledger_view import SampleHistory
from services.scheduler.verdicts import pause_seconds, too_many_dead, verdict
from shared.wire.messages import Attempt, Dead, GaveUp, Requeued, SampleKey


def returned(reason: str = "engine died", counts: bool = True) -> Returned:
    return Returned(SampleKey("j", 0, 0), Attempt(1, 9), "w", reason, counts)


def test_a_failure_is_tried_again_until_the_attempts_are_used_up() -> None:
    assert isinstance(verdict(SampleHistory(failures=1), returned(), max_attempts=3), Requeued)
    last = verdict(SampleHistory(failures=2, tries=["1.1: a", "1.2: b"]), returned(), max_attempts=3)
    assert isinstance(last, GaveUp)
    assert (last.error, last.attempts) == ("engine died", ["1.1: a", "1.2: b", "1.9: engine died"])


def test_a_dead_worker_does_not_count_against_the_sample() -> None:
    found = verdict(SampleHistory(failures=2), returned("worker silent", counts=False), max_attempts=3)
    assert isinstance(found, Requeued)
    assert not found.counts


def test_a_sample_that_was_with_many_dead_workers_may_be_what_kills_them() -> None:
    found = verdict(SampleHistory(returns=10), returned("worker silent", counts=False), max_attempts=2)
    assert isinstance(found, Requeued)
    assert found.counts
    assert isinstance(verdict(SampleHistory(returns=10), returned("x", counts=False), max_attempts=1), GaveUp)


def test_a_long_reason_is_cut() -> None:
    assert len(verdict(SampleHistory(), returned("x" * 9999), 3).reason) == 500


def test_pauses_grow_and_have_an_end() -> None:
    assert [pause_seconds(n) for n in (0, 1, 2, 3, 99)] == [0.0, 0.25, 0.5, 1.0, 10.0]


def test_a_job_too_many_of_whose_groups_die_fails_with_the_newest_error(records, read) -> None:
    view = read(records.issued(0), records.issued(1), Dead(epoch=1, samples=["j/0/0"], errors=["engine died"]))
    assert not too_many_dead(view, 0.5)
    read(Dead(epoch=1, samples=["j/1/1"], errors=["grader crashed"]), view=view)
    assert too_many_dead(view, 0.5) == (
        "2 of 2 groups lost a sample for good (limits.max_dead_rate is 0.5); the newest error: grader crashed"
    )
