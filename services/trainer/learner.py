"""One optimizer step: examples in, new weights out. torch, but no bus, no files, no clock.

advantages -> token weights -> rows -> micro-batches -> (forward, loss, backward) each -> clip -> AdamW
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from services.trainer import optimizer as adamw
from services.trainer.advantage import advantages
from services.trainer.collate import collate
from services.trainer.examples import Example
from services.trainer.logprobs import Scorer
from services.trainer.losses import LOSSES, LossOptions
from services.trainer.packing import Row, micro_batches, rows, token_weights
from shared.job.spec import AlgorithmSpec, SamplingSpec


class Interrupted(Exception):
    """The step was given up between two micro-batches; neither weights nor optimizer have moved."""


@dataclass(frozen=True)
class StepReport:
    """What one step did. Means are over trained tokens, `computed_tokens` are what went through the model."""

    loss: float
    gradient_norm: float
    learning_rate: float
    trained_tokens: int
    computed_tokens: int
    micro_batches: int
    means: dict[str, float] = field(default_factory=dict)

    @property
    def applied(self) -> bool:
        return math.isfinite(self.gradient_norm)


class Learner:
    """A model with its optimizer. `autocast`: compute in this type, weights stay what they are."""

    def __init__(
        self,
        model: Any,
        *,
        algorithm: AlgorithmSpec,
        sampling: SamplingSpec,
        reference: Any | None = None,
        autocast: torch.dtype | None = None,
        pad_id: int = 0,
        share_prompts: bool = True,
    ) -> None:
        # Dropout would make the recomputed log-probabilities differ from the engine's at equal weights.
        self.model = model.eval()
        self.algorithm = algorithm
        self.max_tokens = sampling.max_tokens
        self.loss = LOSSES[algorithm.kind]
        self.options = LossOptions(
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            max_importance_weight=algorithm.max_importance_weight,
            kl=algorithm.kl,
        )
        temperature = sampling.temperature if self.loss.uses_advantage else 1.0
        self.score = Scorer(model, temperature)
        self.score_reference = Scorer(reference.eval(), temperature) if reference is not None else None
        self.share_prompts = share_prompts and self.score.can_share
        self.optimizer = adamw.build(
            model,
            learning_rate=algorithm.learning_rate,
            weight_decay=algorithm.weight_decay,
            betas=(algorithm.adam_beta1, algorithm.adam_beta2),
        )
        self.autocast = autocast
        self.pad_id = pad_id

    def step(
        self, examples: Sequence[Example], step: int, *, interrupted: Callable[[], bool] = lambda: False
    ) -> StepReport:
        """Train step `step` (1, 2, ...) on one whole batch."""
        gains = self.advantages(examples)
        shares = token_weights(examples, self.algorithm.loss_normalisation, self.max_tokens)
        trained = sum(e.trained_tokens for e in examples)
        if self.loss.uses_advantage and self.options.kl == 0:
            shares = np.where(gains == 0, 0.0, shares)  # neither loss nor gradient: need not be computed
        budget = self.algorithm.tokens_per_micro_batch
        all_rows = rows(examples, gains, shares, budget=budget, share_prompts=self.share_prompts)
        batches = micro_batches(all_rows, budget)
        rate = adamw.learning_rate(step, base=self.algorithm.learning_rate, warmup_steps=self.algorithm.warmup_steps)

        total, computed, scored, sums = 0.0, 0, 0, Counter[str]()
        with self._compute():
            for batch in batches:
                if interrupted():
                    self.optimizer.zero_grad(set_to_none=True)
                    raise Interrupted
                loss, tokens, part = self._backward(batch)
                total += loss
                computed += tokens
                scored += sum(len(row.targets) for row in batch)
                sums.update(part)
        norm = adamw.apply(self.optimizer, rate=rate, max_norm=self.algorithm.max_gradient_norm)
        return StepReport(
            loss=total,
            gradient_norm=norm,
            learning_rate=rate,
            trained_tokens=trained,
            computed_tokens=computed,
            micro_batches=len(batches),
            means={name: value / scored for name, value in sums.items()} if scored else {},
        )

    def advantages(self, examples: Sequence[Example]) -> np.ndarray:
        """One number an example; 0 throughout for a loss that uses none."""
        if not self.loss.uses_advantage:
            return np.zeros(len(examples))
        return advantages(
            [e.group for e in examples],
            [e.reward for e in examples],
            [e.counted for e in examples],
            self.algorithm.advantage,
        )

    def _backward(self, batch: Sequence[Row]) -> tuple[float, int, dict[str, float]]:
        weight = next(self.model.parameters())
        arithmetic = torch.promote_types(weight.dtype, torch.float32)
        micro = collate(batch, pad_id=self.pad_id, dtype=arithmetic, device=weight.device)
        reference = None
        if self.score_reference is not None:
            with torch.no_grad():
                reference = self.score_reference(micro)
        result = self.loss.tokens(self.score(micro), micro.old_logprobs, micro.advantages, reference, self.options)
        loss = (result.loss * micro.weights).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()), micro.tokens, result.sums

    def _compute(self) -> AbstractContextManager[Any]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(next(self.model.parameters()).device.type, dtype=self.autocast)
