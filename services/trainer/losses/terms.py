"""What every loss takes and gives."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class LossOptions:
    clip_low: float = 0.2
    clip_high: float = 0.28
    max_importance_weight: float = 2.0
    kl: float = 0.0


@dataclass(frozen=True)
class TokenLoss:
    """`loss` [K], with gradient; `sums`: name -> sum over the tokens, for the metrics."""

    loss: torch.Tensor
    sums: dict[str, float] = field(default_factory=dict)
