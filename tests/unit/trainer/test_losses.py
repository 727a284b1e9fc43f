"""Each loss against the same formula written out number by number."""

import math

import pytest
import torch

from services.trainer.losses import LOSSES, LossOptions

OPTIONS = LossOptions(clip_low=0.2, clip_high=0.3, max_importance_weight=2.0)


def grpo(logp, old, gain, reference=None, options=OPTIONS):
    def tensor(values):
        return torch.tensor(values, dtype=torch.float64)

    return LOSSES["grpo"].tokens(
        tensor(logp), tensor(old), tensor(gain), None if reference is None else tensor(reference), options
    )


@pytest.mark.parametrize(
    ("ratio", "gain", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.2, 2.0, -2.4),
        (1.5, 2.0, -2.6),  # a gain is taken up to 1 + clip_high
        (0.5, 2.0, -1.0),
        (0.5, -2.0, 1.6),  # a loss down to 1 - clip_low
        (1.5, -2.0, 3.0),  # the clip leaves this side open ...
        (9.0, -2.0, 4.0),  # ... and the truncation closes it
        (9.0, 0.0, 0.0),
    ],
)
def test_grpo_is_the_clipped_surrogate_of_the_truncated_ratio(ratio, gain, expected):
    assert grpo([math.log(ratio) - 3.0], [-3.0], [gain]).loss.item() == pytest.approx(expected, abs=1e-12)


def test_a_truncated_ratio_has_no_gradient():
    logp = torch.tensor([0.0, -1.0], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-5.0, -1.0], dtype=torch.float64)
    gains = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    LOSSES["grpo"].tokens(logp, old, gains, None, OPTIONS).loss.sum().backward()
    assert logp.grad.tolist() == [0.0, 1.0]


def test_the_kl_to_the_reference_is_k3_and_counts_only_with_a_weight():
    gap = 0.5
    expected = 0.1 * (math.exp(gap) - gap - 1)
    with_kl = LossOptions(kl=0.1)
    assert grpo([-2.0], [-2.0], [0.0], [-2.0 + gap], with_kl).loss.item() == pytest.approx(expected, abs=1e-12)
    assert grpo([-2.0], [-2.0], [0.0], [-2.0 + gap]).loss.item() == 0.0


def test_what_was_clipped_is_counted():
    sums = grpo([math.log(0.5), math.log(1.1), math.log(3.0)], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]).sums
    assert sums["clipped"] == 2.0
    assert sums["importance"] == pytest.approx(0.5 + 1.1 + 2.0)


def test_sft_is_the_negative_log_likelihood():
    logp = torch.tensor([-1.5, -0.25])
    assert LOSSES["sft"].tokens(logp, logp * 0, logp * 0, None, OPTIONS).loss.tolist() == [1.5, 0.25]


def test_the_table_lists_every_algorithm_of_the_job_file():
    from typing import get_args

    from shared.job.spec import AlgorithmSpec

    assert set(LOSSES) == set(get_args(AlgorithmSpec.model_fields["kind"].annotation))
