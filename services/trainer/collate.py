"""A micro-batch of rows as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from services.trainer.packing import Row


@dataclass(frozen=True)
class MicroBatch:
    """B rows padded on the right to length T, and the K trained tokens of all rows, flattened.

    attention_mask  None for plain rows: a causal model never looks at the padding behind a token, and padding that is
                    masked out of everything, itself included, is NaN in some kernels. bool [B, 1, T, T] for shared rows
    sources         int64 [K], into the B * T positions
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    attention_mask: torch.Tensor | None
    sources: torch.Tensor
    targets: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor

    @property
    def tokens(self) -> int:
        return self.token_ids.numel()


def collate(rows: Sequence[Row], *, pad_id: int, dtype: torch.dtype, device: torch.device) -> MicroBatch:
    """`dtype` is that of the loss arithmetic: float32, or float64 where a test wants it."""
    length = max(len(row.token_ids) for row in rows)
    ids = np.full((len(rows), length), pad_id, dtype=np.int64)
    positions = np.tile(np.arange(length, dtype=np.int64), (len(rows), 1))
    branches = np.full((len(rows), length), -1, dtype=np.int64)
    for b, row in enumerate(rows):
        end = len(row.token_ids)
        ids[b, :end], positions[b, :end], branches[b, :end] = row.token_ids, row.positions, row.branches
    sources = np.concatenate([row.sources + b * length for b, row in enumerate(rows)])

    def floats(name: str) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([getattr(row, name) for row in rows])).to(device, dtype)

    return MicroBatch(
        token_ids=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        attention_mask=_mask(torch.from_numpy(branches).to(device)),
        sources=torch.from_numpy(sources).to(device),
        targets=torch.from_numpy(np.concatenate([row.targets for row in rows])).to(device),
        old_logprobs=floats("old_logprobs"),
        advantages=floats("advantages"),
        weights=floats("weights"),
    )


def _mask(branches: torch.Tensor) -> torch.Tensor | None:
    """What sees what: earlier tokens of the shared part and of one's own branch; padding (-1) only other padding."""
    if not (branches > 0).any():
        return None
    length = branches.shape[1]
    query, key = branches[:, :, None], branches[:, None, :]
    earlier = torch.ones(length, length, dtype=torch.bool, device=branches.device).tril()
    sees = ((key == 0) | (key == query)) & earlier
    return sees[:, None]
