import pytest

from services.trainer.plan import MAX_FAILURES, Attempts, plan
from shared.wire.messages import JobRecord


def job(id: str, state: str = "running", created: float = 0.0) -> JobRecord:
    return JobRecord(id=id, name=id, spec={}, digest="", state=state, created_at=created, updated_at=0.0)


def start(jobs, running=(), attempts=None, slots=2, now=0.0):
    return plan(jobs, running, attempts or {}, slots=slots, now=now).start


def test_the_oldest_jobs_get_the_slots():
    assert start([job("c", created=3), job("a", created=1), job("b", created=2)]) == ["a", "b"]
    assert start([job("c", created=3), job("a", created=1)], running=["b"]) == ["a"]
    assert start([job("a")], running=["x", "y"]) == []


@pytest.mark.parametrize(
    ("state", "starts", "stops"),
    [
        ("running", True, False),
        ("pausing", True, False),
        ("paused", False, False),  # a process that runs lets go by itself, once all is saved
        ("cancelling", False, True),
        ("cancelled", False, True),
        ("completed", False, True),
        ("failed", False, True),
        ("deleting", False, True),
    ],
)
def test_the_jobs_state_decides(state, starts, stops):
    assert bool(start([job("a", state)])) is starts
    assert bool(plan([job("a", state)], ["a"], {}, slots=2, now=0.0).stop) is stops


def test_a_job_that_is_gone_loses_its_process():
    assert plan([], ["a"], {}, slots=2, now=0.0).stop == ["a"]


def test_a_finished_job_is_not_started_again():
    done = Attempts()
    done.ended_well()
    assert start([job("a")], attempts={"a": done}) == []


def test_each_failure_doubles_the_wait_up_to_a_limit():
    attempt, waits = Attempts(progress=0), []
    for _ in range(12):
        attempt.ended_badly(killed=True, progress=0, reason="killed", now=100.0)
        waits.append(attempt.not_before - 100.0)
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0] and waits[-1] == 30.0
    assert start([job("a")], attempts={"a": attempt}, now=129.0) == []
    assert start([job("a")], attempts={"a": attempt}, now=131.0) == ["a"]


def test_five_failures_without_a_version_in_between_are_enough():
    attempt = Attempts(progress=7)
    for _ in range(MAX_FAILURES - 1):
        attempt.ended_badly(killed=False, progress=7, reason="BadSample: gone", now=0.0)
    assert not attempt.hopeless
    attempt.ended_badly(killed=False, progress=8, reason="BadSample: gone", now=0.0)
    assert not attempt.hopeless and attempt.failures == 1
    for _ in range(MAX_FAILURES - 1):
        attempt.ended_badly(killed=False, progress=8, reason="BadSample: gone", now=0.0)
    assert attempt.hopeless and start([job("a")], attempts={"a": attempt}, now=1e9) == []


def test_kills_say_less_about_a_job_than_errors():
    attempt = Attempts(progress=0)
    for _ in range(MAX_FAILURES * 2):
        attempt.ended_badly(killed=True, progress=0, reason="killed", now=0.0)
    assert not attempt.hopeless
