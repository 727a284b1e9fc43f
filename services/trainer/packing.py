"""Examples to rows to micro-batches. Pure: numpy and plain data, no torch.

A *row* is what one line of the model's input holds: a shared prefix and one or more branches behind it.

    plain     [prompt answer]                         one example, branch 0 throughout
    shared    [prompt | answer 1 | answer 2 | ...]    a group whose prompt is computed once; no answer sees another

Each trained token knows where it is predicted from (`source`: the token before it; for the first token of a branch the
last one of the prefix), so nothing downstream shifts labels. Rows are laid into rectangles of about one length, at most
`budget` tokens each, padding included. Each trained token carries its own weight in the step's mean, so the gradient
does not depend on how rows fell into rectangles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.trainer.examples import Example

SHARED_ROW_TOKENS = 320  # a longer shared row costs more in attention than its prompt saves


@dataclass(frozen=True)
class Row:
    """Inputs of length T and, for its K trained tokens, what the loss needs."""

    token_ids: np.ndarray  # int64 [T]
    positions: np.ndarray  # int64 [T], as the engine had them
    branches: np.ndarray  # int64 [T], 0: seen by every branch
    sources: np.ndarray  # int64 [K], index in the row that predicts the token
    targets: np.ndarray  # int64 [K], the token
    old_logprobs: np.ndarray  # float32 [K]
    advantages: np.ndarray  # float64 [K]
    weights: np.ndarray  # float64 [K], share of the token in the step's mean

    @property
    def shared(self) -> bool:
        return bool(self.branches[-1] > 0)


def token_weights(examples: Sequence[Example], kind: str, max_tokens: int) -> np.ndarray:
    """Weight of each trained token of example i, float64 [n]; denominators are taken over the whole step.

    `token`: every trained token alike. `sequence`: every answer alike, whatever its length. `constant`: every token
    alike, and the same in every step: 1 / (answers * max_tokens). A masked example is in no denominator.
    """
    tokens = np.array([e.trained_tokens for e in examples], dtype=np.float64)
    trained = tokens > 0
    count = int(trained.sum())
    weights = np.zeros(len(examples), dtype=np.float64)
    if not count:
        return weights
    if kind == "token":
        weights[trained] = 1.0 / tokens.sum()
    elif kind == "sequence":
        weights[trained] = 1.0 / (count * tokens[trained])
    elif kind == "constant":
        weights[trained] = 1.0 / (count * max_tokens)
    else:
        raise ValueError(f"no loss normalisation {kind!r}")
    return weights


def rows(
    examples: Sequence[Example], advantages: np.ndarray, weights: np.ndarray, *, budget: int, share_prompts: bool
) -> list[Row]:
    """The rows of the examples that train something, in their order.

    With `share_prompts`, examples of a group that begin alike become one row, as long as that row stays within the
    budget and within a length at which attention over the whole row is still cheap.
    """
    wanted = [i for i, e in enumerate(examples) if e.trained_tokens and weights[i] > 0]
    bundles = _bundles(examples, wanted, budget) if share_prompts else [[i] for i in wanted]
    return [_row([examples[i] for i in b], [advantages[i] for i in b], [weights[i] for i in b]) for b in bundles]


def micro_batches(rows: Sequence[Row], budget: int) -> list[list[Row]]:
    """Rectangles of rows of like length: at most `budget` tokens with padding, and always at least one row.

    Shared and plain rows are kept apart, since only the former need a mask of their own. Longest first, ties in order:
    the same rows always fall into the same rectangles.
    """
    result: list[list[Row]] = []
    order = sorted(range(len(rows)), key=lambda i: (not rows[i].shared, -len(rows[i].token_ids), i))
    for i in order:
        row = rows[i]
        last = result[-1] if result else None
        if last and last[0].shared == row.shared and (len(last) + 1) * len(last[0].token_ids) <= budget:
            last.append(row)
        else:
            result.append([row])
    return result


def _prefix_length(example: Example) -> int:
    """How many tokens stand before the first trained one."""
    return int(np.argmax(example.mask))


def _bundles(examples: Sequence[Example], wanted: Sequence[int], budget: int) -> list[list[int]]:
    """Indices that share a row, each bundle of one group and one prefix, in order of first appearance."""
    limit = min(budget, SHARED_ROW_TOKENS)
    bundles: list[list[int]] = []
    lengths: list[int] = []
    open_bundle: dict[tuple[int, bytes], int] = {}
    for i in wanted:
        example = examples[i]
        prefix = _prefix_length(example)
        key = (example.group, example.token_ids[:prefix].tobytes())
        answer = len(example.token_ids) - prefix
        at = open_bundle.get(key)
        if at is not None and lengths[at] + answer <= limit:
            bundles[at].append(i)
            lengths[at] += answer
        else:
            open_bundle[key] = len(bundles)
            bundles.append([i])
            lengths.append(prefix + answer)
    return bundles


def _row(members: Sequence[Example], advantages: Sequence[float], weights: Sequence[float]) -> Row:
    alone = len(members) == 1
    prefix = 0 if alone else _prefix_length(members[0])
    first = members[0].token_ids[:prefix].astype(np.int64)
    ids, positions, branches = [first], [np.arange(prefix)], [np.zeros(prefix, dtype=np.int64)]
    sources, targets, old, gains, shares = [], [], [], [], []
    start = prefix
    for number, (example, advantage, weight) in enumerate(zip(members, advantages, weights, strict=True), start=1):
        length = len(example.token_ids) - prefix
        ids.append(example.token_ids[prefix:].astype(np.int64))
        positions.append(np.arange(prefix, prefix + length))
        branches.append(np.full(length, 0 if alone else number, dtype=np.int64))
        trained = np.flatnonzero(example.mask)
        before = trained - 1
        sources.append(np.where(before >= prefix, before - prefix + start, before))
        targets.append(example.token_ids[trained].astype(np.int64))
        old.append(example.logprobs[trained])
        gains.append(np.full(len(trained), advantage, dtype=np.float64))
        shares.append(np.full(len(trained), weight, dtype=np.float64))
        start += length
    return Row(
        token_ids=np.concatenate(ids),
        positions=np.concatenate(positions),
        branches=np.concatenate(branches),
        sources=np.concatenate(sources),
        targets=np.concatenate(targets),
        old_logprobs=np.concatenate(old),
        advantages=np.concatenate(gains),
        weights=np.concatenate(shares),
    )
