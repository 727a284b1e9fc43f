"""One sample as the learner sees it: one run of tokens, what is trained of it, and what it was worth.

The segments of a trajectory are concatenated; ids, mask and log-probabilities stay aligned, so that position t of each
array speaks of token t. The model predicts token t at position t - 1; `packing` makes that shift, nobody else.

Which log-probability: always the column `raw`, log_softmax(logits / temperature) of the token that was taken. What the
learner recomputes is exactly that, and a ratio must have one kind above and below. With top-p or top-k the engine's
true distribution is renormalised over the ids that it kept (column `behaviour`), and recomputing *that* needs those ids
for every token. Without them the ratio of raw to raw is the ratio over the whole vocabulary: it leaves out how the kept
share of the probability changed between two versions, which is a factor near 1, whereas raw over behaviour would put
the kept share itself, up to 1 / top_p, into every token's weight.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from shared.wire.messages import BadMessage, BatchedSample, Scored, Segment, Trajectory, Version, array, decode

RAW = "raw"


class BadSample(ValueError):
    """A recorded sample that cannot be what the ledger says it is; the text is one line that names it."""


@dataclass(frozen=True)
class Example:
    """`token_ids` int32 [L], `mask` bool [L] (trained), `logprobs` float32 [L] (NaN where nothing was sampled)."""

    sample: str
    group: int
    token_ids: np.ndarray
    mask: np.ndarray
    logprobs: np.ndarray
    reward: float = 0.0
    counted: bool = True  # its reward belongs to the group's baseline
    masked: str = ""  # why none of it is trained; empty: it is
    solved: bool = False
    ages: Counter[int] = field(default_factory=Counter)  # trained tokens by age in steps

    @property
    def trained_tokens(self) -> int:
        return 0 if self.masked else int(self.mask.sum())


def from_scored(body: bytes, record: BatchedSample, *, step: int, sampled: bool, context_length: int) -> Example:
    """The example behind one entry of a recorded batch.

    `sampled`: the answer was drawn by an engine, so every trained token must bring its raw log-probability.
    Raises `BadSample` where the body is not the one that was recorded; an ungraded or too long sample is masked.
    """
    try:
        scored = decode(Scored, body)
        trajectory = decode(Trajectory, scored.trajectory)
    except BadMessage as error:
        raise BadSample(f"{record.sample}: its body at sequence {record.sequence} cannot be read: {error}") from error
    if trajectory.sample != record.sample or trajectory.attempt != record.attempt:
        found = f"{trajectory.sample} attempt {trajectory.attempt}"
        raise BadSample(f"{record.sample} attempt {record.attempt}: sequence {record.sequence} holds {found}")

    ids, mask, logprobs = concatenate(trajectory.segments)
    masked = record.masked
    counted = scored.score.valid and math.isfinite(scored.score.total)
    if not masked and not counted:
        masked = "not graded"
    if not masked and context_length and len(ids) > context_length:
        masked = f"{len(ids)} tokens are over the context of {context_length}"
    if mask[0]:
        raise BadSample(f"{record.sample}: its first token is trained, but nothing stands before it to predict it from")
    if sampled and not masked and not np.isfinite(logprobs[mask]).all():
        raise BadSample(f"{record.sample}: a trained token has no finite {RAW!r} log-probability")
    components = scored.score.components
    return Example(
        sample=record.sample,
        group=trajectory.key.group,
        token_ids=ids,
        mask=mask,
        logprobs=logprobs,
        reward=scored.score.total if counted else 0.0,
        counted=counted,
        masked=masked,
        solved=bool(components) and next(iter(components.values())) == 1.0,
        ages=token_ages(trajectory.segments, step),
    )


def concatenate(segments: list[Segment]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids, mask and raw log-probabilities of all segments, one after the other."""
    ids = np.concatenate([array(s.token_ids, "<i4") for s in segments])
    mask = np.concatenate([array(s.mask, "u1") for s in segments]).astype(bool)
    logprobs = np.concatenate(
        [
            array(s.columns[RAW], "<f4") if RAW in s.columns else np.full(s.length, np.nan, dtype=np.float32)
            for s in segments
        ]
    )
    return ids, mask, logprobs


def token_ages(segments: list[Segment], step: int) -> Counter[int]:
    """Trained tokens by age: the step that the batch starts from, `step - 1`, less the step that made the token."""
    ages: Counter[int] = Counter()
    for segment in segments:
        mask = array(segment.mask, "u1")
        for span in segment.spans:
            trained = int((mask[span.start : span.end] != 0).sum())
            if trained:
                ages[step - 1 - Version.parse(span.version).step] += trained
    return ages
