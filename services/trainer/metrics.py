"""What the `step` event says. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from services.trainer.examples import Example
from services.trainer.learner import StepReport
from shared.wire.messages import Version


def step_body(
    report: StepReport,
    examples: Sequence[Example],
    *,
    version: Version,
    seconds: Mapping[str, float],
    redone: bool,
) -> dict[str, Any]:
    """`tokens_per_second` is over the whole step, waiting included; `seconds` says what took how long."""
    rewards = np.array([e.reward for e in examples if e.counted], dtype=np.float64)
    ages: Counter[int] = Counter()
    for example in examples:
        if not example.masked:
            ages.update(example.ages)
    total = sum(seconds.values())
    means = report.means
    return {
        "loss": report.loss,
        "reward_mean": float(rewards.mean()) if len(rewards) else 0.0,
        "reward_std": float(rewards.std()) if len(rewards) else 0.0,
        "exact_solve_rate": float(np.mean([e.solved for e in examples if e.counted])) if len(rewards) else 0.0,
        "samples": len(examples),
        "masked": sum(1 for e in examples if e.masked),
        "tokens": report.trained_tokens,
        "computed_tokens": report.computed_tokens,
        "tokens_per_second": report.trained_tokens / total if total > 0 else 0.0,
        "age_histogram": {str(age): count for age, count in sorted(ages.items())},
        "gradient_norm": report.gradient_norm,
        "applied": report.applied,
        "learning_rate": report.learning_rate,
        "kl": means.get("kl", 0.0),
        "behaviour_kl": means.get("behaviour_kl", 0.0),
        "importance_mean": means.get("importance", 1.0),
        "importance_clipped_share": means.get("clipped", 0.0),
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "version": str(version),
        "redone": redone,
    }
