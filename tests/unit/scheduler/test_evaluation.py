from __future__ import annotations

from math import sqrt

import pytest

from services.scheduler.evaluation import Answer, Round, answer, mean_and_error, schedule, summary
from services.scheduler.rounds import Rounds
from shared.job.spec import EvaluationSpec
from shared.wire.messages import SampleKey, Score, Version

V0, V1 = Version(0, 1), Version(1, 1)


def spec(**values) -> EvaluationSpec:
    return EvaluationSpec(**{"prompts": 2, "samples": 2, **values})


def graded(solved: bool, reward: float = 0.0, valid: bool = True) -> Answer:
    return Answer(valid=valid, solved=solved, reward=reward, components={"exact": float(solved)})


def test_rounds_come_before_the_first_step_every_n_and_after_the_last() -> None:
    found = schedule(spec(every=4), last_step=10)
    assert [(r.number, r.step, r.mode, r.samples) for r in found] == [
        (0, 0, "greedy", 1), (1, 0, "sampled", 2), (2, 4, "greedy", 1), (3, 4, "sampled", 2),
        (4, 8, "greedy", 1), (5, 8, "sampled", 2), (6, 10, "greedy", 1), (7, 10, "sampled", 2),
    ]  # fmt: skip


def test_an_early_end_keeps_the_numbers_of_the_rounds_before_it() -> None:
    whole, short = schedule(spec(every=4), 10), schedule(spec(every=4), 8)
    assert short == whole[:6]
    assert [r.step for r in schedule(spec(every=4), 5)] == [0, 0, 4, 4, 5, 5]


def test_without_held_out_prompts_there_is_no_round() -> None:
    assert schedule(EvaluationSpec(), 10) == []


def test_prompts_are_the_unit_of_the_standard_error() -> None:
    answers = {(0, 0): graded(True, 1.0), (0, 1): graded(True, 0.5), (1, 0): graded(False), (1, 1): graded(True, 0.5)}
    body = summary(Round(3, 4, "sampled", prompts=2, samples=2), V1, answers, ["", ""])
    assert (body["solve_rate"], body["reward_mean"]) == (0.75, 0.5)
    assert body["solve_rate_stderr"] == pytest.approx(sqrt(((1 - 0.75) ** 2 + (0.5 - 0.75) ** 2) / 2))
    assert (body["round"], body["version_step"], body["mode"], body["prompts"], body["samples"]) == (
        3,
        4,
        "sampled",
        2,
        4,
    )
    assert body["components"] == {"exact": 0.75}
    assert body["solved"] == [1.0, 0.5]
    assert (body["ungraded"], body["missing"], body["parts"]) == (0, 0, {})


def test_what_could_not_be_graded_is_no_zero() -> None:
    answers = {(0, 0): graded(True, 1.0), (1, 0): graded(False, valid=False)}
    body = summary(Round(0, 0, "greedy", prompts=3, samples=1), V0, answers, ["", "", ""])
    assert (body["solve_rate"], body["graded"], body["ungraded"], body["missing"]) == (1.0, 1, 1, 1)
    assert body["solved"] == [1.0, None, None]


def test_parts_of_a_mix_are_told_apart() -> None:
    answers = {(0, 0): graded(True, 1.0), (1, 0): graded(False), (2, 0): graded(True, 1.0)}
    body = summary(Round(0, 0, "greedy", prompts=3, samples=1), V0, answers, ["one", "two", "two"])
    assert {label: part["solve_rate"] for label, part in body["parts"].items()} == {"one": 1.0, "two": 0.5}


def test_solved_is_a_first_component_of_exactly_one() -> None:
    score = Score(components={"exact": 1.0, "length": 0.2}, total=1.1)
    assert answer(score, "exact").solved
    assert not answer(score, "length").solved
    assert not answer(Score(valid=False, error="no grader"), "exact").valid


def test_of_nothing_there_is_no_mean_and_of_one_no_error() -> None:
    assert mean_and_error([]) == (None, None)
    assert mean_and_error([0.5]) == (0.5, 0.0)


# --- rounds as they run ---------------------------------------------------------------------------------------------


def rounds(every: int = 0, modes=("greedy",), samples: int = 1) -> Rounds:
    wanted = spec(every=every, modes=modes, samples=samples)
    return Rounds("j", lambda: schedule(wanted, 4), ["", ""], max_attempts=2)


def key(prompt: int, number: int = 0, index: int = 0) -> SampleKey:
    return SampleKey("j", prompt, index, number)


def test_rounds_of_one_step_are_open_together_and_the_next_step_waits() -> None:
    found = rounds(every=2, modes=("greedy", "sampled"))
    assert found.next_due(newest_step=-1) == []
    due = found.next_due(newest_step=2)
    assert [r.step for r in due] == [0, 0]
    found.open_rounds(due, V0, now=0.0)
    assert found.version == V0
    assert found.next_due(newest_step=2) == []
    assert [c.key.id for c in found.waiting()] == ["j/eval-0/0/0", "j/eval-0/1/0", "j/eval-1/0/0", "j/eval-1/1/0"]


def test_a_round_is_complete_when_every_answer_is_graded_and_the_first_copy_counts() -> None:
    found = rounds()
    found.open_rounds(found.next_due(0), V0, 0.0)
    found.add_answer(key(0), graded(True, 1.0), 0.0)
    found.add_answer(key(0), graded(False), 0.0)
    assert not found.complete(0.0, lambda v: True, 30.0)
    found.add_answer(key(1), graded(False), 0.0)
    (done,) = found.complete(0.0, lambda v: True, 30.0)
    assert found.body(done.round, done.version)["solve_rate"] == 0.5
    found.mark_recorded(0)
    assert (found.open, found.version, found.all_recorded) == ({}, None, False)


def test_answers_that_came_before_a_restart_are_not_wanted_again() -> None:
    found = rounds()
    found.doubtful = True
    found.add_answer(key(0), graded(True), 0.0)
    found.open_rounds(found.next_due(0), V0, 0.0)
    assert [c.key for c in found.waiting()] == [key(1)]
    assert found.work_of(key(1)).is_doubtful(key(1))


def test_a_recorded_round_is_not_opened_again_and_its_late_answers_are_ignored() -> None:
    found = rounds()
    found.mark_recorded(0)
    found.add_answer(key(0), graded(True), 0.0)
    assert [r.step for r in found.next_due(4)] == [4]
    assert found._answers == {}


def test_an_answer_that_fails_too_often_is_missing_and_holds_nothing_up() -> None:
    found = rounds()
    found.open_rounds(found.next_due(0), V0, 0.0)
    found.add_answer(key(0), graded(True), 0.0)
    for last in (False, True):
        found.work_of(key(1)).lease(key(1))
        assert found.failed(key(1), counts=True, not_before=0.0) == last
    (done,) = found.complete(0.0, lambda v: True, 30.0)
    assert found.body(done.round, done.version)["missing"] == 1


def test_a_round_whose_version_is_gone_for_good_closes_with_what_it_has() -> None:
    found = rounds()
    found.open_rounds(found.next_due(0), V0, 0.0)
    assert not found.complete(0.0, lambda v: False, patience_seconds=30.0)
    assert not found.complete(20.0, lambda v: True, patience_seconds=30.0)
    assert not found.complete(40.0, lambda v: False, patience_seconds=30.0)
    assert found.complete(71.0, lambda v: False, patience_seconds=30.0)


def test_a_job_without_evaluation_has_nothing_to_wait_for() -> None:
    found = Rounds("j", lambda: [], [], 1)
    assert found.all_recorded
    assert found.next_due(3) == []


def test_training_awaits_a_round_until_it_has_been_open_for_a_while_or_is_recorded() -> None:
    found = rounds(every=2)
    assert found.awaited_step(0.0, 5.0) == 0
    due = found.next_due(0)
    found.open_rounds(due, V0, now=10.0)
    assert found.awaited_step(14.0, 5.0) == 0
    after = found.awaited_step(15.0, 5.0)
    assert after is not None and after > 0
    assert found.awaited_step(15.0, None) == 0
    for each in due:
        found.mark_recorded(each.number)
    assert found.awaited_step(15.0, None) == after
