"""The losses, one file each, and the table that lists them.

A loss maps the log-probabilities of the trained tokens to one number a token. It never averages: the learner weighs
each token with `packing.token_weights`, whose denominators span the whole step, so that cutting the step into
micro-batches cannot change the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from services.trainer.losses.grpo import grpo
from services.trainer.losses.sft import sft
from services.trainer.losses.terms import LossOptions, TokenLoss


@dataclass(frozen=True)
class Loss:
    """`tokens(logprobs, old_logprobs, advantages, reference_logprobs or None, options)`, all of shape [K]."""

    tokens: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, LossOptions], TokenLoss]
    uses_advantage: bool  # a token with advantage 0 and no KL has neither loss nor gradient


LOSSES: dict[str, Loss] = {
    "grpo": Loss(grpo, uses_advantage=True),
    "sft": Loss(sft, uses_advantage=False),
}

__all__ = ["LOSSES", "Loss", "LossOptions", "TokenLoss"]
