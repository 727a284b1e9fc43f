"""One token a row: distribution, cuts, log-probabilities, and independence of rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.sampling import Rows, draw, uniforms


def rows(count: int, *, temperature: float = 1.0, greedy: bool = False, top_p: float = 1.0, top_k: int = -1) -> Rows:
    return Rows(
        np.full(count, temperature, np.float32),
        np.full(count, greedy),
        np.full(count, top_p, np.float32),
        np.full(count, top_k, np.int64),
    )


def test_uniforms_are_a_function_of_seed_and_position_and_spread_evenly() -> None:
    seeds = np.arange(20_000, dtype=np.uint64)
    drawn = uniforms(seeds, np.full(20_000, 7))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.01
    counts = np.histogram(drawn, bins=20, range=(0, 1))[0]
    assert counts.min() > 850
    assert counts.max() < 1150
    assert (uniforms(seeds[5:6], np.array([7])) == drawn[5]).all()
    along = uniforms(np.full(20_000, 3, np.uint64), np.arange(20_000))
    assert abs(np.corrcoef(along[:-1], along[1:])[0, 1]) < 0.03
    assert abs(np.corrcoef(drawn, along)[0, 1]) < 0.03


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([0.3, 2.0, -1.0, 1.2])
    count = 40_000
    drawn = draw(
        logits.expand(count, 4),
        rows(count, temperature=0.7),
        uniforms(np.arange(count, dtype=np.uint64), np.ones(count, np.int64)),
        [],
    )
    found = np.bincount(drawn.tokens, minlength=4) / count
    assert found == pytest.approx(torch.softmax(logits / 0.7, 0).numpy(), abs=0.01)


def test_draws_from_a_large_vocabulary_follow_the_softmax() -> None:
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(8192, generator=generator) * 3
    count = 4_000
    u = uniforms(np.arange(count, dtype=np.uint64), np.ones(count, np.int64))
    drawn = np.array(draw(logits.expand(count, 8192), rows(count), u, []).tokens)
    sums = torch.softmax(logits.double(), 0).cumsum(0).numpy()
    assert (sums[drawn] >= u - 1e-5).all()
    assert (np.where(drawn > 0, sums[drawn - 1], 0) <= u + 1e-5).all()


def test_raw_logprobs_are_before_the_cut_and_behaviour_after_it() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0, -9.0]])
    p = torch.softmax(logits[0], 0)
    for seed in range(50):
        drawn = draw(logits, rows(1, top_k=2), uniforms(np.array([seed], np.uint64), np.array([1])), [0])
        token = drawn.tokens[0]
        assert token in (0, 1)
        assert drawn.kept[0] == [0, 1]
        assert drawn.raw[0] == pytest.approx(math.log(p[token]), abs=1e-6)
        assert drawn.behaviour[0] == pytest.approx(math.log(p[token] / p[:2].sum()), abs=1e-6)


def test_top_p_keeps_the_fewest_that_reach_it_and_at_least_one() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for top_p, kept in ((0.4, [0]), (0.6, [0, 1]), (0.9, [0, 1, 2]), (0.97, [0, 1, 2, 3])):
        assert draw(logits, rows(1, top_p=top_p), np.zeros(1, np.float32), [0]).kept[0] == kept


def test_a_wide_cut_over_a_large_vocabulary_equals_the_full_sort() -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(3, 5000, generator=generator)
    found = draw(logits, rows(3, top_p=0.95), np.zeros(3, np.float32), [0, 1, 2])
    for row in range(3):
        p, ids = torch.softmax(logits[row], 0).sort(descending=True, stable=True)
        count = int((p.cumsum(0) - p <= 0.95).sum())
        assert count > 2048
        assert found.kept[row] == ids[:count].tolist()


def test_greedy_takes_the_largest_and_is_certain() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.5]])
    drawn = draw(logits, rows(1, greedy=True), np.array([0.99], np.float32), [0])
    assert (drawn.tokens, drawn.behaviour, drawn.kept[0]) == ([1], [0.0], [1])
    assert drawn.raw[0] == pytest.approx(float(torch.log_softmax(logits, -1)[0, 1]), abs=1e-6)


@pytest.mark.parametrize("vocab", [700, 8192])
def test_a_row_does_not_depend_on_the_others(vocab: int) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(12, vocab, generator=generator).bfloat16().float()  # many equal values, as in bfloat16 engines
    settings = Rows(
        np.array([0.6, 1.0, 1.3] * 4, np.float32),
        np.array([False, False, True, False] * 3),
        np.array([1.0, 0.9, 0.5] * 4, np.float32),
        np.array([-1, 5, 300, 128, 127, -1] * 2, np.int64),
    )
    u = uniforms(np.arange(12, dtype=np.uint64), np.arange(12))
    together = draw(logits, settings, u, list(range(12)))
    for row in range(12):
        one = slice(row, row + 1)
        own = Rows(settings.temperature[one], settings.greedy[one], settings.top_p[one], settings.top_k[one])
        alone = draw(logits[one], own, u[one], [0])
        assert alone.tokens[0] == together.tokens[row]
        assert alone.raw[0] == together.raw[row]
        assert alone.behaviour[0] == together.behaviour[row]
        assert alone.kept[0] == together.kept[row]


def test_the_largest_uniform_still_draws_a_possible_token() -> None:
    logits = torch.full((1, 50), -torch.inf)
    logits[0, :3] = 0
    drawn = draw(logits, rows(1), np.array([1 - 2**-24], np.float32), [])
    assert drawn.tokens == [2]


def test_logits_that_are_not_numbers_are_told_by_a_nan() -> None:
    logits = torch.full((2, 5), torch.nan)
    logits[1] = 0
    drawn = draw(logits, rows(2), np.full(2, 0.5, np.float32), [])
    assert math.isnan(drawn.raw[0])
    assert not math.isnan(drawn.raw[1])
