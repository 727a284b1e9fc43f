"""GRPO with the engine's log-probabilities as the behaviour policy.

    r    = exp(logp - logp_old), truncated above at `max_importance_weight`
    loss = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)  [+ kl * k3(policy || reference)]

`logp_old` is what the engine reported when it drew the token, at whatever version that was, so one ratio corrects both
for staleness and for what engine and trainer compute differently. The truncation bounds the one side that the clip
leaves open: a token with A < 0 that has become much likelier. There is no second proximal ratio, since a batch is used
for one optimizer step.

k3 = exp(d) - d - 1 with d = logp_reference - logp: unbiased for the KL, never negative.
"""

from __future__ import annotations

import torch

from services.trainer.losses.terms import LossOptions, TokenLoss


def grpo(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    reference_logprobs: torch.Tensor | None,
    options: LossOptions,
) -> TokenLoss:
    difference = logprobs - old_logprobs
    untruncated = torch.exp(difference)
    ratio = untruncated.clamp(max=options.max_importance_weight)
    clipped = ratio.clamp(1 - options.clip_low, 1 + options.clip_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    with torch.no_grad():
        outside = (untruncated < 1 - options.clip_low) | (untruncated > 1 + options.clip_high)
        sums = {
            "importance": float(ratio.sum()),
            "clipped": float(outside.sum()),
            "behaviour_kl": float((untruncated - 1 - difference).sum()),
        }
    if reference_logprobs is not None and options.kl > 0:
        gap = reference_logprobs - logprobs
        k3 = torch.exp(gap) - gap - 1
        loss = loss + options.kl * k3
        sums["kl"] = float(k3.detach().sum())
    return TokenLoss(loss, sums)
