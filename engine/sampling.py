"""One token a row from a matrix of logits: a pure function of each row, its settings and one uniform number.

The uniform is a hash of (seed, position), position being the token's absolute place in prompt + answer. So a draw
depends neither on the other rows nor on how often the answer was interrupted, and any number of engines agree on it.
Inverse-CDF: the token is where the running sum of probabilities passes the uniform. Two log-probabilities come back:
raw, log_softmax(logits / temperature), and behaviour, renormalised over what top-k and top-p kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

FIRST_LOOKS = (128, 2048)
LARGE, BLOCK = 4096, 128

# The multipliers of splitmix64's finaliser.
MIX_1, MIX_2, STEP = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * MIX_1
    x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))


def uniforms(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """One number in [0, 1) per (seed, position): 24 bits, the most that float32 holds evenly."""
    mixed = _mix(_mix(seeds + STEP) + positions.astype(np.uint64) * STEP)
    return (mixed >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


@dataclass(frozen=True)
class Rows:
    """Sampling settings, one entry a row. Temperature 0 has been turned into `greedy` and temperature 1."""

    temperature: npt.NDArray[np.float32]
    greedy: npt.NDArray[np.bool_]
    top_p: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Drawn:
    """What was drawn, one entry a row. `kept` holds the ids that top-k and top-p left, most likely first."""

    tokens: list[int]
    raw: list[float]
    behaviour: list[float]
    kept: dict[int, list[int]]


def draw(logits: torch.Tensor, rows: Rows, uniform: npt.NDArray[np.float32], want_kept: list[int]) -> Drawn:
    """One token for each row of `logits` [rows, vocabulary], float32.

    `want_kept` names the rows whose kept ids are wanted. A row with logits that are not numbers gives NaN.
    """
    vocab = logits.shape[-1]
    # Dividing by 1 changes no bit, so whether it is left out may depend on the neighbours.
    tempered = logits if (rows.temperature == 1).all() else logits / torch.from_numpy(rows.temperature)[:, None]
    probabilities = torch.softmax(tempered, dim=-1)
    top_k = np.where(rows.top_k < 1, vocab, np.minimum(rows.top_k, vocab))
    cut = np.flatnonzero(~rows.greedy & ((top_k < vocab) | (rows.top_p < 1)))
    kept: dict[int, list[int]] = {}
    pool = probabilities
    if len(cut):
        pool = probabilities.clone()
        for row, ids in zip(cut.tolist(), _kept_ids(probabilities[cut], top_k[cut], rows.top_p[cut]), strict=True):
            left = probabilities[row, ids]
            pool[row].zero_()[ids] = left
            kept[row] = ids.tolist()
    tokens, total = _pick(pool, torch.from_numpy(uniform)[:, None])
    greedy = np.flatnonzero(rows.greedy)
    if len(greedy):
        tokens[greedy] = logits[greedy].argmax(dim=-1, keepdim=True)
    drawn = tokens[:, 0].tolist()
    # Logarithms of single floats: a vector's last elements may take another code path, and differ in the last bit.
    picked = probabilities.gather(1, tokens)[:, 0].tolist()
    raw = [_log(p) for p in picked]
    behaviour = list(raw)
    for row, mass in zip(kept, total[list(kept), 0].tolist(), strict=True):
        behaviour[row] = _log(picked[row] / mass)
    for row in greedy.tolist():
        kept[row], behaviour[row] = [drawn[row]], 0.0 * raw[row]
    return Drawn(drawn, raw, behaviour, {row: kept.get(row) or list(range(vocab)) for row in want_kept})


def _pick(pool: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each row's running sum passes its uniform, and the row's sum; both [rows, 1].

    A running sum is serial, so over a large vocabulary first a block is found, then the token in it.
    """
    rows, vocab = pool.shape
    if vocab < LARGE or vocab % BLOCK:
        sums = pool.cumsum(dim=-1)
        return _passes(sums, uniform * sums[:, -1:]), sums[:, -1:]
    blocks = pool.view(rows, -1, BLOCK)
    masses = blocks.sum(dim=-1)
    sums = masses.cumsum(dim=-1)
    goal = uniform * sums[:, -1:]
    block = _passes(sums, goal)
    within = blocks[torch.arange(rows), block[:, 0]].cumsum(dim=-1)
    place = _passes(within, goal - (sums.gather(1, block) - masses.gather(1, block)))
    return block * BLOCK + place, sums[:, -1:]


def _passes(sums: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    """The first place where `sums` is above `goal`; a goal that rounding pushed to the end stays below it."""
    below_end = torch.nextafter(sums[:, -1:], torch.zeros(()))
    return torch.searchsorted(sums, torch.minimum(goal, below_end), right=True).clamp_(max=sums.shape[-1] - 1)


def _log(p: float) -> float:
    return math.log(p) if p > 0 else math.nan


def _kept_ids(
    probabilities: torch.Tensor, top_k: npt.NDArray[np.int64], top_p: npt.NDArray[np.float32]
) -> list[torch.Tensor]:
    """For each row the ids that top-k and top-p leave: rank below k, and no more than p in the ranks before.

    Most rows keep few tokens, and sorting a whole vocabulary is dear; so look at the first ranks, then at more. How
    far is decided by the row alone: which of two equal probabilities ranks first may depend on how many are ranked.
    """
    vocab = probabilities.shape[-1]
    found: list[torch.Tensor] = [torch.empty(0)] * len(top_k)
    open_rows = list(range(len(top_k)))
    for look in (*(look for look in FIRST_LOOKS if look < vocab), vocab):
        ranked = probabilities[open_rows]
        values, ids = ranked.topk(look, dim=-1) if look < vocab else ranked.sort(dim=-1, descending=True, stable=True)
        before = values.cumsum(dim=-1) - values
        limit = torch.from_numpy(np.where(top_p < 1, top_p, np.inf).astype(np.float32)[open_rows])
        within_p = (before <= limit[:, None]).sum(dim=-1).tolist()
        left = []
        for row, row_ids, p in zip(open_rows, ids, within_p, strict=True):
            keep = max(1, min(int(top_k[row]), p))
            found[row] = row_ids[:keep]
            if keep == look < top_k[row]:
                left.append(row)
        open_rows = left
        if not open_rows:
            break
    return found
