"""Which groups make a batch, and what a trainer that asks is told."""

from __future__ import annotations

from typing import Any

from services.replay_buffer.selection import Form, Ready, Refused, Wait, answer
from shared.wire.messages import Batched, Ending, EpochOpened


def ask(log: Any, step: int, epoch: int = 1, **more: Any) -> Any:
    return answer(log.buffer, log.policy, trainer_epoch=epoch, step=step, waited_seconds=0.0, **more)


def test_the_lowest_numbered_complete_groups_are_taken_in_group_and_index_order_whatever_came_first(log: Any) -> None:
    log.issue(0, 1, 2, 3)
    log.score(3, 1, 0)
    log.score(2, 1, 0)
    log.score(1, 1)
    assert log.form() == (2, 3)
    assert log.last_batch() == [f"sums-1a2b3c/{g}/{i}" for g in (2, 3) for i in (0, 1)]


def test_too_few_complete_groups_wait_and_the_reason_names_the_one_that_is_missing(log: Any) -> None:
    log.issue(0, 1)
    log.score(0)
    log.score(1, 1)
    assert log.form() == "1 of 2 groups are complete; group 1 (issued at version 0) has 1 of 2 samples scored"
    assert ask(log, 1) == Wait(log.form())


def test_when_nothing_is_issued_the_reason_says_so(log: Any) -> None:
    assert log.form() == "0 of 2 groups are complete; no other group has been issued"


def test_the_same_step_asked_again_gives_the_same_record(log: Any) -> None:
    log.issue(0, 1, 2, 3)
    log.score(0)
    log.score(1)
    assert isinstance(ask(log, 1), Form)
    log.form()
    sequence = len(log.records)
    log.score(2)
    log.score(3)
    assert ask(log, 1) == Ready(sequence)
    assert isinstance(ask(log, 2), Form)


def test_a_step_beyond_the_next_one_is_refused(log: Any) -> None:
    assert ask(log, 2) == Refused("step 2 cannot come yet: the next batch is of step 1")


def test_a_step_outside_the_job_is_refused(make_log: Any) -> None:
    log = make_log(steps=3)
    assert ask(log, 0) == Refused("step 0 is not one of this job's steps 1..3")
    assert ask(log, 4) == Refused("step 4 is not one of this job's steps 1..3")


def test_an_early_end_refuses_the_steps_beyond_it(log: Any) -> None:
    log.issue(0, 1, 2, 3)
    for group in range(4):
        log.score(group)
    log.form()
    log.write(Ending(epoch=1, last_step=1, reason="solved"))
    assert isinstance(ask(log, 1), Ready)
    assert ask(log, 2) == Refused("step 2 is not one of this job's steps 1..1")


def test_only_the_newest_trainer_epoch_is_answered(log: Any) -> None:
    log.write(EpochOpened(epoch=2, role="trainer", holder="other"))
    assert ask(log, 1, epoch=1) == Refused("trainer epoch 1 is over: epoch 2 has begun")
    assert isinstance(ask(log, 1, epoch=2), Wait)
    assert ask(log, 1, epoch=3) == Wait("trainer epoch 3 is not in the ledger yet (newest is 2)")


def test_a_cancelled_job_hands_out_no_batch(log: Any) -> None:
    log.issue(0, 1)
    log.score(0)
    log.score(1)
    assert ask(log, 1, cancelling=True) == Refused("the job is being cancelled")


def test_of_two_copies_of_a_sample_the_lowest_sequence_is_batched_and_the_other_counted(log: Any) -> None:
    log.issue(0, 1)
    log.score(0, attempt=1)
    log.score(0, 0, attempt=2)
    log.score(1)
    log.form()
    record = log.records[-1]
    assert isinstance(record, Batched)
    assert [(s.sequence, str(s.attempt)) for s in record.samples[:2]] == [(1, "1.1"), (2, "1.1")]
    assert log.buffer.late_copies == 1


def test_a_copy_that_is_read_late_but_was_stored_first_wins(log: Any) -> None:
    log.issue(0, 1)
    log.score(0)
    log.score(1)
    first = log.scored[0]
    again = type(log.buffer)("sums-1a2b3c", 1)
    for sequence, record in enumerate(log.records, 1):
        again.read(sequence, record)
    again.add(type(first)(group=0, index=0, sequence=9, attempt=first.attempt))
    again.add(first)
    assert again.scored[0][0].sequence == 1
    assert again.late_copies == 1


def test_a_due_group_is_waited_for_although_enough_others_are_complete(log: Any) -> None:
    log.issue(0, 1, 2, version=0)
    log.score(0)
    log.score(1)
    log.form()  # step 1: group 2 is one version old at step 2, two at step 3
    log.issue(3, 4, version=1)
    log.score(3, oldest=1)
    log.score(4, oldest=1)
    log.score(2, 0)
    reason = log.form(waited_seconds=4.0)
    assert reason == (
        "enough groups are complete, but group 2 (issued at version 0) has 1 of 2 samples scored and would be too old "
        "for the next step; waiting for it up to 30 s (4 s so far)"
    )
    log.score(2, 1)
    assert log.form() == (2, 3)


def test_a_due_group_is_waited_for_no_longer_than_the_pace_and_then_passed_over_for_good(log: Any) -> None:
    log.issue(0, 1, 2, version=0)
    log.score(0)
    log.score(1)
    log.form()
    log.issue(3, 4, 5, 6, version=1)
    for group in (3, 4, 5, 6):
        log.score(group, oldest=2)
    assert log.form(waited_seconds=30.0) == (3, 4)
    assert log.form(waited_seconds=0.0) == (5, 6)


def test_a_group_passed_over_is_taken_if_its_tokens_are_young_enough(log: Any) -> None:
    log.issue(0, 1, 2, version=0)
    log.score(0)
    log.score(1)
    log.form()
    log.issue(3, 4, version=1)
    log.score(3, oldest=1)
    log.score(4, oldest=1)
    log.form(waited_seconds=30.0)
    log.issue(5, version=2)
    log.score(2, oldest=1)
    log.score(5, oldest=2)
    assert log.form() == (2, 5)


def test_a_complete_group_that_would_be_too_old_next_goes_before_a_lower_numbered_young_one(make_log: Any) -> None:
    log = make_log(staleness=1, groups_per_step=1)
    log.issue(0, version=0)
    log.score(0)
    log.form()
    log.issue(1, 2, version=1)
    log.score(1, oldest=1)
    log.score(2, oldest=0)  # a worker that lagged
    assert log.form() == (2,)
    assert log.form() == (1,)


def test_a_missing_group_that_is_not_due_is_not_waited_for(make_log: Any) -> None:
    log = make_log(staleness=2)
    log.issue(0, 1, 2)
    log.score(1)
    log.score(2)
    assert log.form() == (1, 2)


def test_at_staleness_zero_the_batch_is_the_lowest_open_groups_however_long_they_take(make_log: Any) -> None:
    log = make_log(staleness=0)
    log.issue(0, 1, 2)
    log.score(2)
    log.score(1)
    assert "group 0" in log.form(waited_seconds=1e9)
    log.score(0)
    assert log.form() == (0, 1)


def test_at_staleness_zero_the_replacement_of_a_dead_group_joins_the_batch(make_log: Any) -> None:
    log = make_log(staleness=0)
    log.issue(0, 1)
    log.score(1)
    log.give_up(0, 1)
    log.settle()
    assert log.form() == "1 of 2 groups are complete; no other group has been issued"
    log.issue(2)
    log.score(2)
    assert log.form() == (1, 2)


def test_demonstrations_never_get_old(log: Any) -> None:
    log.issue(*range(12))
    for group in range(12):
        log.score(group, oldest=-1)
    assert [log.form() for _ in range(6)] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11)]
    assert log.settle() == []


def test_scores_that_are_read_before_their_group_is_issued_count_once_it_is(log: Any) -> None:
    log.score(0)
    log.score(1)
    assert log.form() == "0 of 2 groups are complete; no other group has been issued"
    log.issue(0, 1)
    assert log.form() == (0, 1)
