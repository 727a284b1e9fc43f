"""Where each sample ends, and what is forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from services.replay_buffer.buffer import read_headers
from services.replay_buffer.ledger_view import Inconsistent
from shared.wire.messages import BadMessage, Batched, Dead, Dropped, GaveUp, Issued, Retired


def ids(*places: str) -> list[str]:
    return [f"sums-1a2b3c/{place}" for place in places]


def test_an_invalid_score_is_dead_with_its_error_and_its_siblings_are_dropped_scored_or_not(make_log: Any) -> None:
    log = make_log(n=3)
    log.issue(0)
    log.score(0, 0)
    log.score(0, 1, valid=False)
    assert log.settle() == [
        Dead(epoch=0, samples=ids("0/1"), errors=["bad"]),
        Dropped(epoch=0, samples=ids("0/0", "0/2"), reason="sibling dead"),
    ]


def test_a_sample_given_up_is_dead(log: Any) -> None:
    log.issue(0)
    log.give_up(0, 1)
    assert log.settle() == [
        Dead(epoch=0, samples=ids("0/1"), errors=["engine died"]),
        Dropped(epoch=0, samples=ids("0/0"), reason="sibling dead"),
    ]


def test_a_sample_given_up_whose_score_is_stored_after_all_lives(log: Any) -> None:
    log.issue(0, 1)
    log.score(0)
    log.score(1)
    log.give_up(0, 1)
    assert log.settle() == []
    assert log.form() == (0, 1)


def test_a_group_with_a_token_that_is_too_old_for_the_next_step_is_dropped_at_once(log: Any) -> None:
    log.issue(0, 1, 2, 3, 4)
    for group in (0, 1, 2, 3):
        log.score(group)
    assert log.form() == (0, 1)
    assert log.settle() == []
    assert log.form() == (2, 3)
    log.score(4, 1)  # at step 3 its token is 2 versions old
    assert log.settle() == [Dropped(epoch=0, samples=ids("4/0", "4/1"), reason="stale")]


def test_a_complete_group_that_missed_its_last_batch_is_dropped(make_log: Any) -> None:
    log = make_log(groups_per_step=1, staleness=0)
    log.issue(0, 1)
    log.score(0)
    log.score(1)
    log.form()
    assert log.settle() == [Dropped(epoch=0, samples=ids("1/0", "1/1"), reason="stale")]


def test_trained_steps_are_retired_once(log: Any) -> None:
    log.issue(0, 1, 2, 3)
    for group in range(4):
        log.score(group)
    log.form()
    log.form()
    log.train(1)
    log.train(2)
    assert log.settle() == [Retired(epoch=0, first=1, last=2)]


def test_when_the_last_step_is_trained_everything_else_is_dropped(make_log: Any) -> None:
    log = make_log(steps=1)
    log.issue(0, 1, 2, 3)
    for group in (0, 1, 2):
        log.score(group)
    log.form()
    log.score(3, 0)
    log.train(1)
    assert log.settle() == [
        Retired(epoch=0, first=1, last=1),
        Dropped(epoch=0, samples=ids("2/0", "2/1", "3/0", "3/1"), reason="job ended"),
    ]
    log.issue(4)
    assert log.settle() == [Dropped(epoch=0, samples=ids("4/0", "4/1"), reason="job ended")]


def test_a_cancelled_job_drops_what_no_checkpoint_covers_batched_or_not(log: Any) -> None:
    log.issue(0, 1, 2, 3, 4)
    for group in range(4):
        log.score(group)
    log.form()
    log.form()
    log.train(1)
    assert log.settle(cancelling=True) == [
        Retired(epoch=0, first=1, last=1),
        Dropped(epoch=0, samples=ids("2/0", "2/1", "3/0", "3/1", "4/0", "4/1"), reason="job ended"),
    ]
    assert not log.buffer.view.open


def test_messages_may_go_when_their_group_is_settled_and_no_kept_checkpoint_needs_it(log: Any) -> None:
    log.issue(0, 1, 2, 3, 4)
    for group in range(4):
        log.score(group)
    log.score(4, 0, valid=False)
    log.form()
    log.form()
    log.train(2, oldest_kept=1)
    assert log.buffer.deletable() == set()
    log.settle()
    assert log.buffer.deletable() == {0, 1, 4}
    for group in (0, 1, 4):
        log.buffer.deleted(group)
    log.score(0, 1, attempt=7)  # a redo that was on its way
    assert log.buffer.deletable() == {0}
    assert log.buffer.late_copies == 1


def test_what_is_settled_is_not_remembered_group_by_group(log: Any) -> None:
    for group in range(0, 2000, 2):
        log.issue(group, group + 1, version=group // 2)
        log.score(group, oldest=group // 2)
        log.score(group + 1, oldest=group // 2)
        assert log.form() == (group, group + 1)
        log.train(group // 2 + 1, oldest_kept=group // 2)
        log.settle()
        for number in log.buffer.deletable():
            log.buffer.deleted(number)
    view = log.buffer.view
    assert (len(view.open), len(view.batched), len(log.buffer.scored), len(log.buffer.present)) == (0, 1, 0, 2)
    assert view.expendable.intervals == [(0, 1998)]


def test_a_ledger_that_contradicts_itself_is_refused_by_sequence(log: Any) -> None:
    log.issue(0, 1)
    with pytest.raises(Inconsistent, match="record 4 of sums-1a2b3c issues group 1 a second time"):
        log.issue(1)
    with pytest.raises(Inconsistent, match="settles group 7, not in flight"):
        log.write(Dropped(epoch=1, samples=ids("7/0"), reason="stale"))
    with pytest.raises(Inconsistent, match="is the batch of step 3, where step 1 comes next"):
        log.write(Batched(epoch=1, step=3, trainer_epoch=1, samples=[]))


def test_an_evaluation_sample_given_up_is_outside_the_balance(log: Any) -> None:
    log.issue(0)
    log.write(GaveUp(epoch=1, sample="sums-1a2b3c/eval-3/0/0", error="x", attempts=[]))
    assert log.settle() == []


def test_headers_are_read_as_the_reward_service_writes_them() -> None:
    headers = {
        "Sample": "sums-1a2b3c/4/1", "Attempt": "2.17", "Sample-Class": "train", "Oldest-Step": "3", "Tokens": "12",
        "Valid": "1", "Reward": "0.25", "Digest": "abc",
    }  # fmt: skip
    sample = read_headers("sums-1a2b3c", "scored.sums-1a2b3c.4.1", 9, headers)
    assert (sample.group, sample.index, sample.sequence, str(sample.attempt)) == (4, 1, 9, "2.17")
    assert (sample.valid, sample.reward, sample.oldest_step, sample.tokens) == (True, 0.25, 3, 12)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"Reward": "nan"}, "the reward is nan"),
        ({"Attempt": "x"}, "unreadable headers"),
        ({"Sample": "sums-1a2b3c/9/9"}, "header Sample is"),
        ({"Digest": None}, "header 'Digest' is missing"),
    ],
)
def test_headers_that_cannot_be_read_make_the_sample_of_the_subject_invalid(change: dict[str, Any], why: str) -> None:
    headers = {
        "Sample": "sums-1a2b3c/4/1", "Attempt": "2.17", "Oldest-Step": "3", "Tokens": "12", "Valid": "1",
        "Reward": "0.25", "Digest": "abc",
    }  # fmt: skip
    headers = {name: text for name, text in {**headers, **change}.items() if text is not None}
    sample = read_headers("sums-1a2b3c", "scored.sums-1a2b3c.4.1", 9, headers)
    assert (sample.group, sample.index, sample.valid) == (4, 1, False)
    assert why in sample.error


def test_a_foreign_subject_is_a_bad_message() -> None:
    with pytest.raises(BadMessage):
        read_headers("sums-1a2b3c", "scored.sums-1a2b3c.eval.1.4.1", 9, {})


def test_a_sample_beyond_the_group_is_a_late_copy_and_harms_nothing(log: Any) -> None:
    log.score(0, 0, 1, 2)
    log.write(Issued(epoch=1, group=0, row=0, row_digest="", n=2, version_step=0))
    log.issue(1)
    log.score(1)
    assert log.form() == (0, 1)
