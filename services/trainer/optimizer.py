"""AdamW with a linear warm-up to a constant rate, and clipping by the norm of the whole gradient."""

from __future__ import annotations

import math

import torch


def build(
    model: torch.nn.Module, *, learning_rate: float, weight_decay: float, betas: tuple[float, float]
) -> torch.optim.AdamW:
    """Weight decay on matrices only: norms and biases have no reason to shrink."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=learning_rate, betas=betas, fused=True)


def learning_rate(step: int, *, base: float, warmup_steps: int) -> float:
    """The rate of step 1, 2, ...: a function of the step, so that a checkpoint needs no state for it."""
    return base * min(1.0, step / (warmup_steps + 1))


def apply(optimizer: torch.optim.AdamW, *, rate: float, max_norm: float) -> float:
    """One step from the gradients that have been added up; returns their norm before clipping.

    A gradient that is not finite changes nothing: one bad batch must not end in a model of NaN.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p in parameters:
        if p.grad is None:  # a step in which nothing had an advantage still moves along AdamW's momentum
            p.grad = torch.zeros_like(p)
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))
    if math.isfinite(norm):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm
