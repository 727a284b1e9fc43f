import numpy as np
import pytest

from services.trainer.examples import Example
from services.trainer.packing import SHARED_ROW_TOKENS, micro_batches, rows, token_weights


def example(
    group: int, prompt: list[int], answer: list[int], mask: list[int] | None = None, masked: str = ""
) -> Example:
    ids = np.array(prompt + answer, dtype=np.int32)
    trained = np.array([0] * len(prompt) + (mask or [1] * len(answer)), dtype=bool)
    logprobs = np.where(trained, -ids.astype(np.float32), np.nan).astype(np.float32)
    return Example(f"j/{group}/{ids.sum()}", group, ids, trained, logprobs, masked=masked)


def packed(examples, *, budget=1000, share=True):
    weights = token_weights(examples, "token", 8)
    return rows(examples, np.arange(1.0, len(examples) + 1), weights, budget=budget, share_prompts=share)


def test_a_plain_row_predicts_each_trained_token_from_the_one_before_it():
    (row,) = packed([example(0, [5, 6, 7], [8, 9])])
    assert row.token_ids.tolist() == [5, 6, 7, 8, 9] and row.positions.tolist() == [0, 1, 2, 3, 4]
    assert row.sources.tolist() == [2, 3] and row.targets.tolist() == [8, 9]
    assert row.old_logprobs.tolist() == [-8.0, -9.0] and not row.shared


def test_a_group_shares_its_prompt_and_its_answers_keep_their_positions():
    (row,) = packed([example(0, [5, 6, 7], [8, 9]), example(0, [5, 6, 7], [10, 11, 12])])
    assert row.token_ids.tolist() == [5, 6, 7, 8, 9, 10, 11, 12]
    assert row.positions.tolist() == [0, 1, 2, 3, 4, 3, 4, 5]
    assert row.branches.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert row.sources.tolist() == [2, 3, 2, 5, 6]  # the first token of each answer comes out of the prompt's last
    assert row.targets.tolist() == [8, 9, 10, 11, 12]
    assert row.advantages.tolist() == [1, 1, 2, 2, 2]


def test_only_the_tokens_of_the_mask_are_trained_also_over_several_turns():
    turns = example(0, [5, 6], [8, 20, 21, 9], [1, 0, 0, 1])
    (row,) = packed([turns])
    assert row.sources.tolist() == [1, 4] and row.targets.tolist() == [8, 9]
    (both,) = packed([turns, example(0, [5, 6], [10])])
    assert both.sources.tolist() == [1, 4, 1] and both.targets.tolist() == [8, 9, 10]


def test_examples_of_one_group_with_different_prompts_do_not_share():
    assert len(packed([example(0, [5, 6], [8]), example(0, [5, 7], [9])])) == 2


def test_a_shared_row_stays_within_the_budget():
    group = [example(0, [5] * 10, [6] * 5) for _ in range(8)]
    made = packed(group, budget=32)
    assert [len(r.token_ids) for r in made] == [30, 30]
    assert all(
        len(r.token_ids) <= SHARED_ROW_TOKENS for r in packed([example(0, [5] * 10, [6] * 300)] * 8, budget=10**6)
    )


def test_a_masked_example_is_in_no_row_and_in_no_denominator():
    examples = [example(0, [5], [6, 7]), example(0, [5], [8, 9], masked="stale")]
    assert token_weights(examples, "token", 8).tolist() == [0.5, 0.0]
    assert [r.targets.tolist() for r in packed(examples)] == [[6, 7]]


@pytest.mark.parametrize(
    ("kind", "expected"), [("token", [1 / 4, 1 / 4]), ("sequence", [1 / 2, 1 / 6]), ("constant", [1 / 16, 1 / 16])]
)
def test_token_weights_have_the_whole_steps_denominator(kind, expected):
    examples = [example(0, [5], [6]), example(1, [5], [7, 8, 9])]
    assert token_weights(examples, kind, max_tokens=8).tolist() == pytest.approx(expected)


def test_micro_batches_are_rectangles_within_the_budget_with_every_row_once():
    draw = np.random.default_rng(0)
    examples = [example(i, [5] * int(draw.integers(1, 9)), [6] * int(draw.integers(1, 9))) for i in range(40)]
    made = packed(examples, share=False)
    cut = micro_batches(made, 24)
    assert all(len(b) * max(len(r.token_ids) for r in b) <= 24 for b in cut)
    assert sorted(id(r) for b in cut for r in b) == sorted(map(id, made))
    padding = sum(len(b) * max(len(r.token_ids) for r in b) - sum(len(r.token_ids) for r in b) for b in cut)
    assert padding <= 0.1 * sum(len(r.token_ids) for r in made)


def test_a_row_over_the_budget_goes_alone():
    made = packed([example(0, [5] * 50, [6]), example(1, [5], [6])], share=False)
    assert [len(b) for b in micro_batches(made, 10)] == [1, 1]


def test_nothing_to_train_makes_no_row():
    assert packed([example(0, [5], [6], masked="stale")]) == []
