from __future__ import annotations

import pytest

from services.scheduler.leases import NOT_RECEIVED, SILENT, LeaseTable
from shared.wire.messages import AskLeases, Attempt, Ended, Held, SampleKey, Version

KEY, OTHER = SampleKey("j", 0, 0), SampleKey("j", 0, 1)


def ask(worker: str = "w", held=(), ended=(), version: str = "0.1", draining: bool = False) -> AskLeases:
    return AskLeases(
        worker=worker, job="j", version=version, slots=4, free_slots=4, held=list(held), ended=list(ended),
        draining=draining,
    )  # fmt: skip


def everything(_: SampleKey) -> bool:
    return True


@pytest.fixture
def table() -> LeaseTable:
    return LeaseTable(epoch=2, lease_seconds=10.0, silent_seconds=3.0)


def test_attempts_carry_the_epoch_and_are_never_used_again(table) -> None:
    assert table.grant(KEY, "w", 0.0) == Attempt(2, 1)
    assert table.grant(OTHER, "w", 0.0) == Attempt(2, 2)
    with pytest.raises(ValueError, match="leased already"):
        table.grant(KEY, "v", 0.0)


def test_progress_extends_the_deadline_and_standing_still_does_not(table) -> None:
    attempt = table.grant(KEY, "w", 0.0)
    for second in range(1, 9):
        table.report(ask(held=[Held(sample=KEY.id, attempt=attempt, tokens=second)]), float(second), everything)
    for second in range(9, 18):
        table.report(ask(held=[Held(sample=KEY.id, attempt=attempt, tokens=8)]), float(second), everything)
        assert not table.expire(float(second))
    table.report(ask(held=[Held(sample=KEY.id, attempt=attempt, tokens=8)]), 18.5, everything)
    (returned,) = table.expire(18.5)
    assert (returned.key, returned.counts) == (KEY, True)
    assert returned.reason == "no progress for 10 s after 8 tokens"
    assert not table.leases


def test_a_silent_workers_leases_come_back_and_it_is_not_to_blame(table) -> None:
    table.report(ask("dead"), 0.0, everything)
    table.report(ask("alive"), 0.0, everything)
    table.grant(KEY, "dead", 0.0)
    attempt = table.grant(OTHER, "alive", 0.0)
    table.report(ask("alive", held=[Held(sample=OTHER.id, attempt=attempt)]), 3.5, everything)
    (returned,) = table.expire(3.5)
    assert (returned.key, returned.reason, returned.counts) == (KEY, SILENT, False)
    assert list(table.workers) == ["alive"]


def test_a_lease_that_the_next_ask_does_not_name_never_arrived(table) -> None:
    attempt = table.grant(KEY, "w", 0.0)
    (returned,) = table.report(ask(), 0.5, everything).returned
    assert (returned.attempt, returned.reason, returned.counts) == (attempt, NOT_RECEIVED, False)
    assert not table.leases


def test_an_end_without_error_is_finished_and_with_one_it_is_returned(table) -> None:
    first, second = table.grant(KEY, "w", 0.0), table.grant(OTHER, "w", 0.0)
    report = table.report(
        ask(ended=[Ended(sample=KEY.id, attempt=first), Ended(sample=OTHER.id, attempt=second, error="engine died")]),
        1.0,
        everything,
    )
    assert report.finished == [KEY]
    assert [(r.key, r.reason, r.counts) for r in report.returned] == [(OTHER, "engine died", True)]
    assert (report.stale, table.leases) == (0, {})


def test_reports_of_an_earlier_attempt_are_counted_and_change_nothing(table) -> None:
    table.grant(KEY, "w", 0.0)
    table.expire(20.0)
    newer = table.grant(KEY, "v", 20.0)
    old = Attempt(2, 1)
    report = table.report(
        ask(
            "w", held=[Held(sample=KEY.id, attempt=old, tokens=9)], ended=[Ended(sample=KEY.id, attempt=old, error="x")]
        ),
        21.0,
        everything,
    )
    assert report.revoked == [Held(sample=KEY.id, attempt=old, tokens=9)]
    assert not report.returned
    assert table.leases[KEY.id].attempt == newer
    assert table.stale_reports == 2


def test_a_trajectory_of_an_earlier_attempt_is_a_trajectory(table) -> None:
    table.grant(KEY, "v", 0.0)
    report = table.report(ask("w", ended=[Ended(sample=KEY.id, attempt=Attempt(1, 7))]), 1.0, everything)
    assert (report.finished, report.stale) == ([KEY], 1)
    assert not table.leases


def test_what_a_worker_holds_from_before_a_restart_is_adopted(table) -> None:
    held = Held(sample=KEY.id, attempt=Attempt(1, 7), tokens=5)
    report = table.report(ask(held=[held]), 1.0, everything)
    assert (report.adopted, report.revoked) == ([KEY], [])
    assert table.leases[KEY.id].attempt == Attempt(1, 7)
    twice = table.report(ask("v", held=[Held(sample=KEY.id, attempt=Attempt(1, 6))]), 1.0, everything)
    assert (len(twice.revoked), twice.adopted) == (1, [])


def test_a_worker_that_was_only_silent_for_a_while_keeps_what_nobody_else_was_given(table) -> None:
    table.report(ask(), 0.0, everything)
    kept, given = table.grant(KEY, "w", 0.0), table.grant(OTHER, "w", 0.0)
    assert len(table.expire(3.5)) == 2
    table.grant(OTHER, "v", 4.0)
    held = [Held(sample=KEY.id, attempt=kept, tokens=3), Held(sample=OTHER.id, attempt=given, tokens=3)]
    report = table.report(ask(held=held), 5.0, everything)
    assert (report.adopted, report.revoked) == ([KEY], held[1:])


def test_a_worker_that_made_no_progress_does_not_keep_it(table) -> None:
    table.report(ask(), 0.0, everything)
    attempt = table.grant(KEY, "w", 0.0)
    held = Held(sample=KEY.id, attempt=attempt)
    for second in range(1, 11):
        table.report(ask(held=[held]), float(second), everything)
    assert len(table.expire(10.5)) == 1
    assert table.report(ask(held=[held]), 11.0, everything).revoked == [held]


def test_what_nobody_wants_any_more_is_revoked(table) -> None:
    attempt = table.grant(KEY, "w", 0.0)
    table.revoke(lambda key: key == KEY)
    held = Held(sample=KEY.id, attempt=attempt)
    assert table.report(ask(held=[held]), 1.0, lambda key: False).revoked == [held]


@pytest.mark.parametrize("sample", ["other/0/0", "nonsense", ""])
def test_a_sample_that_is_not_this_jobs_is_revoked(table, sample) -> None:
    report = table.report(ask(held=[Held(sample=sample, attempt=Attempt(1, 1))]), 0.0, everything)
    assert (len(report.revoked), report.stale) == (1, 1)


def test_a_worker_that_has_drained_is_gone_without_a_wait(table) -> None:
    table.grant(KEY, "w", 0.0)
    ended = Ended(sample=KEY.id, attempt=Attempt(2, 1), error="worker draining", counts=False)
    report = table.report(ask(ended=[ended], draining=True), 0.5, everything)
    assert [r.counts for r in report.returned] == [False]
    assert not table.workers


def test_a_version_that_cannot_be_read_is_no_version(table) -> None:
    table.report(ask(version=""), 0.0, everything)
    table.report(ask("v", version="3.1"), 0.0, everything)
    assert [view.version for view in table.views()] == [None, Version(3, 1)]
