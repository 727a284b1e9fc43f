"""Log-probabilities of taken tokens: log_softmax(logits / temperature), in float32, only where a token is trained.

The output layer is most of a small model's memory: [tokens, vocabulary] in float32 is 200 KB a token for 50,000 words.
So it runs on the positions that predict a trained token, a chunk of them at a time; with more than one chunk, each is
computed again in the backward pass instead of being kept.

That needs the model cut in two, body and output layer. Some architectures do more to their logits than one matrix
product (soft caps, scales). `Scorer` asks the model itself: on a few tokens it compares the cut with the whole, and
where they differ it uses the whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from services.trainer.collate import MicroBatch

CHUNK_ELEMENTS = 24 * 1024 * 1024  # logits in a chunk: 96 MB in float32
PROBE_TOKENS = 12
LOGIT_CHANGES = ("final_logit_softcapping", "logit_scale", "logits_scaling")  # small logits hide them from the probe
SAME = 1e-4  # relative difference that rounding explains


class Scorer:
    """The log-probabilities that a causal language model gives to the targets of a micro-batch."""

    def __init__(self, model: Any, temperature: float, *, chunk_elements: int = CHUNK_ELEMENTS) -> None:
        self.model = model
        self.temperature = temperature
        self.chunk_elements = chunk_elements
        with torch.no_grad():
            self.cut = _cut_is_exact(model)
            self.can_share = _branches_are_exact(model)

    def __call__(self, batch: MicroBatch) -> torch.Tensor:
        """[K], differentiable."""
        inputs = {
            "input_ids": batch.token_ids,
            "attention_mask": batch.attention_mask,
            "position_ids": batch.positions,
            "use_cache": False,
        }
        if not self.cut:
            logits = self.model(**inputs).logits.flatten(0, 1)[batch.sources]
            return taken(logits, batch.targets, self.temperature)
        hidden = self.model.base_model(**inputs).last_hidden_state.flatten(0, 1)[batch.sources]
        head = self.model.get_output_embeddings()
        size = max(1, self.chunk_elements // head.weight.shape[0])

        def chunk(h: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return taken(head(h), targets, self.temperature)

        if len(hidden) <= size:
            return chunk(hidden, batch.targets)
        parts = zip(torch.split(hidden, size), torch.split(batch.targets, size), strict=True)
        return torch.cat([checkpoint(chunk, h, t, use_reentrant=False) for h, t in parts])


def taken(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    """log_softmax(logits [K, V] / temperature) at `targets` [K], in float32 or better."""
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    return scaled.gather(1, targets[:, None]).squeeze(1) - scaled.logsumexp(dim=1)


def _probe_ids(model: Any) -> torch.Tensor:
    vocabulary = model.get_output_embeddings().weight.shape[0]
    return (torch.arange(PROBE_TOKENS, device=model.device) * 7919 + 11).remainder(vocabulary)[None]


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() <= SAME * (1 + b.abs().max()))


def _cut_is_exact(model: Any) -> bool:
    """Whether output layer after body is all that the model does."""
    if any(getattr(model.config, name, None) for name in LOGIT_CHANGES):
        return False
    ids = _probe_ids(model)
    head = model.get_output_embeddings()
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    if hidden.shape[-1] != head.weight.shape[-1]:
        return False
    return _same(head(hidden), model(input_ids=ids, use_cache=False).logits)


def _branches_are_exact(model: Any) -> bool:
    """Whether the model obeys a mask and positions of our own, so that answers can share their prompt."""
    ids = _probe_ids(model)
    prefix, half = PROBE_TOKENS // 3, PROBE_TOKENS // 3
    first, second = ids[:, : prefix + half], torch.cat([ids[:, :prefix], ids[:, prefix + half :]], dim=1)
    device = ids.device
    branches = torch.tensor([[0] * prefix + [1] * half + [2] * (PROBE_TOKENS - prefix - half)], device=device)
    positions = torch.cat([torch.arange(prefix + half), torch.arange(prefix, PROBE_TOKENS - half)])[None].to(device)
    sees = (branches[:, None, :] == 0) | (branches[:, None, :] == branches[:, :, None])
    sees = (sees & torch.ones(PROBE_TOKENS, PROBE_TOKENS, dtype=torch.bool, device=device).tril())[:, None]
    try:
        both = model(input_ids=ids, attention_mask=sees, position_ids=positions, use_cache=False).logits
    except (TypeError, ValueError, IndexError, RuntimeError):
        return False
    apart = [model(input_ids=x, use_cache=False).logits for x in (first, second)]
    return _same(both[:, : prefix + half], apart[0]) and _same(both[:, prefix + half :], apart[1][:, prefix:])
