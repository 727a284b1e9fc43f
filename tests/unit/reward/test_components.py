"""What the kinds of component are worth, prepared in this process."""

from typing import Any

import pytest

from services.reward.components import Case, Component, GradingError, exact, length, prepare, python, runs_inline
from services.reward.components.reasoning_gym import task_of
from shared.job.spec import DataSpec, RewardSpec

SUMS = DataSpec(reasoning_gym="chain_sum", settings={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})
LINES = DataSpec(jsonl="rows.jsonl", answer="solution")


def component(kind: str, data: DataSpec = SUMS, **fields: Any) -> Component:
    return Component(RewardSpec(name="it", kind=kind, **fields), data)


def worth(of: Component, text: str, row: dict[str, Any] | None = None, tokens: int = 1) -> float:
    return prepare(of).grade(Case(text, tokens, {"answer": "12"} if row is None else row))


@pytest.mark.parametrize(
    ("answer", "expected", "same"),
    [
        ("12", "12", True),
        ("12.0", "12", True),
        ("+12", "12", True),
        ("1,000", "1000", True),
        ("1000", "1,000.00", True),
        ("0.1", ".1", True),
        ("10,00", "1000", False),
        ("-12", "12", False),
        ("1e1", "10", False),
        ("9" * 2000, "9" * 1999 + "8", False),
        ("  a  b ", "a b", True),
        ("Ab", "ab", False),
        ("café", "cafe\u0301", True),
        ("", "", True),
    ],
)
def test_exact_compares_numbers_as_numbers_and_text_up_to_white_space(answer: str, expected: str, same: bool) -> None:
    assert exact.equal(answer, expected) is same


def test_exact_reads_the_answer_from_the_column_that_the_job_names() -> None:
    assert worth(component("exact", LINES), "yes", {"solution": "yes", "answer": "no"}) == 1.0
    assert worth(component("exact", LINES), "5", {"solution": 5}) == 1.0


def test_a_row_without_an_answer_is_a_failure_and_not_a_zero() -> None:
    with pytest.raises(GradingError, match="no 'solution'"):
        worth(component("exact", LINES), "yes", {"question": "?"})


def test_an_answer_without_the_part_to_grade_is_worth_nothing() -> None:
    assert worth(component("exact", extract="last_number"), "I do not know") == 0.0
    assert worth(component("exact", extract="last_number"), "7 + 5 = 12.") == 1.0
    assert worth(component("exact", extract="tag"), "12") == 0.0
    assert worth(component("exact", extract="regex", pattern="is (.*)$"), "it is 12") == 1.0


def test_length_is_one_up_to_the_target_and_falls_beyond() -> None:
    assert length.value(8, 8) == 1.0
    assert length.value(1, 8) == 1.0
    assert length.value(16, 8) == 0.5
    assert worth(component("length", target_tokens=4, extract="tag"), "no tag here", tokens=8) == 0.5


def test_a_pattern_is_found_anywhere_in_the_part() -> None:
    assert worth(component("regex", pattern=r"\b12\b"), "it is 12!") == 1.0
    assert worth(component("regex", pattern=r"^12$"), "it is 12!") == 0.0


@pytest.mark.parametrize(
    "of",
    [component("regex"), component("regex", pattern="("), component("length"), component("python", function="nowhere")],
)
def test_a_component_that_lacks_what_it_needs_cannot_be_prepared(of: Component) -> None:
    with pytest.raises(GradingError):
        prepare(of)


def test_math_sees_equal_values_in_other_forms() -> None:
    half = {"answer": "\\frac{1}{2}"}
    assert worth(component("math"), "so it is $0.5$", half) == 1.0
    assert worth(component("math"), "so it is $\\boxed{\\frac{2}{4}}$", half) == 1.0
    assert worth(component("math"), "so it is 0.6", half) == 0.0
    assert worth(component("math"), "no idea", half) == 0.0


def test_reasoning_gym_scores_with_the_rows_own_entry() -> None:
    row = {"question": "7 + 5 =", "answer": "12", "metadata": {"source_dataset": "chain_sum"}}
    assert worth(component("reasoning_gym", extract="last_number"), "that makes 12", row) == 1.0
    assert worth(component("reasoning_gym"), "that makes 12", row) < 1.0
    assert worth(component("reasoning_gym", extract="last_number"), "13", row) == 0.0


def test_a_row_says_which_task_made_it_and_else_the_job_does() -> None:
    assert task_of({"task": "leg_counting"}, "chain_sum") == "leg_counting"
    assert task_of({"metadata": {"source_dataset": "spell_backward"}}, "chain_sum") == "spell_backward"
    assert task_of({}, "chain_sum") == "chain_sum"
    with pytest.raises(GradingError, match="does not say"):
        task_of({}, None)


def test_a_task_that_does_not_exist_is_named() -> None:
    with pytest.raises(GradingError, match="no_such_task"):
        prepare(component("reasoning_gym", DataSpec(reasoning_gym="no_such_task")))


@pytest.mark.parametrize(("returned", "value"), [(1, 1.0), (True, 1.0), (-0.5, -0.5)])
def test_a_python_reward_may_return_any_finite_number(returned: object, value: float) -> None:
    assert python.number(returned) == value


@pytest.mark.parametrize("returned", [float("nan"), float("inf"), "1.0", None, [1.0], 1j])
def test_what_is_no_finite_number_is_a_failure(returned: object) -> None:
    with pytest.raises(GradingError, match=r"returned .* no (finite )?number"):
        python.number(returned)


def test_only_kinds_that_are_linear_in_a_short_answer_run_in_the_service_itself() -> None:
    assert runs_inline(component("exact"), "12")
    assert runs_inline(component("length", target_tokens=1), "12")
    assert not runs_inline(component("exact", extract="regex", pattern="."), "12")
    assert not runs_inline(component("exact"), "1" * 100_000)
    for kind in ("regex", "math", "reasoning_gym", "python"):
        assert not runs_inline(component(kind), "12")
