"""Supervised fine-tuning: the negative log-likelihood of the demonstration's tokens."""

from __future__ import annotations

import torch

from services.trainer.losses.terms import LossOptions, TokenLoss


def sft(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    reference_logprobs: torch.Tensor | None,
    options: LossOptions,
) -> TokenLoss:
    return TokenLoss(-logprobs)
