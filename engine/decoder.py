"""A Llama- or Qwen2-style decoder in plain torch over a KV cache of slots.

`cache` is [layers, slots, 2 * kv_heads, positions, head_dim]: keys in the first kv_heads, values in the rest, so that
one write a layer stores both. It is float32 whatever the weights are: torch's CPU attention converts bfloat16 so slowly
that twice the memory is a good trade, and float32 is nearer to the truth. It grows with the longest request.

`step` feeds one token to each of the first n slots, `prefill` many tokens to one slot. The caller samples from what
`step` returns, and feeds the last prompt token to it too: every answer begins there.

Fixed mode (deterministic inference): every forward pass has exactly `rows` rows, and each row attends on its own over
a length that does not matter to it. A row's result then depends on nothing but its own tokens, whether it was fed by
`step` or by `prefill`. Matrix products can still differ by row position (edge tiles): `rows` is a multiple of 16
because of that, and `engine.probe` checks it on the machine at hand.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.architecture import Architecture
from engine.weights import Layer, Weights

BUCKET = 16  # attention looks at this many positions more at a time
GROWTH = 256  # the cache grows by multiples of this many positions
FIXED_BUCKET = 512  # torch's attention walks keys in blocks of 512: a fully masked block adds exactly nothing
FIXED_ROWS = 16


class Decoder:
    """The weights in use and the KV cache. Not thread-safe: one thread owns it."""

    def __init__(self, weights: Weights, slots: int, length: int, *, fixed: bool) -> None:
        self.slots, self.length, self.fixed = slots, length, fixed
        self.single_rows = False  # fixed mode, where even the fixed shape is not enough: one row at a time
        self.rows = -(-slots // FIXED_ROWS) * FIXED_ROWS if fixed else slots
        a = weights.architecture
        # Queries and keys turn (kind 0), values do not (kind 1): one multiplication serves all heads.
        self._head_kinds = torch.tensor([0] * (a.heads + a.kv_heads) + [1] * a.kv_heads)
        self._slot_numbers = torch.arange(self.rows)
        self._blocked, self._open = torch.full((), -torch.inf), torch.zeros(())
        self.weights = weights
        self.reset()

    def reset(self) -> None:
        """Gives the cache's memory back; what it held is lost."""
        a = self.weights.architecture
        self._positions = 0
        self.cache = torch.zeros(a.layers, self.rows, 2 * a.kv_heads, 0, a.head_dim)
        self.reserve(1)

    def reserve(self, count: int) -> None:
        """Makes room for `count` positions in each slot, and keeps what is there.

        Fixed mode has `rows` positions more, where the padding rows of its passes write.
        """
        unit = FIXED_BUCKET if self.fixed else GROWTH
        wanted = -(-(count + self.rows * self.fixed) // unit) * unit
        if wanted <= self._positions:
            return
        a = self.weights.architecture
        wanted = max(wanted, min(2 * self._positions, -(-self.length // unit) * unit))
        grown = torch.zeros(a.layers, self.rows, 2 * a.kv_heads, wanted, a.head_dim)
        grown[:, :, :, : self._positions] = self.cache
        self.cache, self._positions = grown, wanted
        self._cos, self._sin = _rotary_tables(a, wanted)
        heads = torch.arange(2 * a.kv_heads)
        self._row_offsets = (self._slot_numbers[:, None] * 2 * a.kv_heads + heads) * wanted
        self._key_positions = torch.arange(wanted)

    @property
    def spare(self) -> int:
        """A position that no request uses: where a row without a request writes in fixed mode."""
        return self._positions - 1

    def use(self, weights: Weights) -> None:
        """Takes other weights of the same architecture; what the cache holds stays."""
        self.weights = weights

    # --- the two ways to feed tokens ------------------------------------------------------------------------------

    def step(self, tokens: torch.Tensor, positions: torch.Tensor, longest: int) -> torch.Tensor:
        """Feeds tokens[i] at positions[i] to slot i; gives float32 logits [n, vocabulary].

        `longest` is the largest position. In fixed mode n must be `rows`.
        """
        if self.single_rows:
            parts = [
                self._forward(tokens[i : i + 1], positions[i : i + 1], self._slot_numbers[i : i + 1], longest, i)
                for i in range(len(tokens))
            ]
            return self._logits(parts)
        return self._logits([self._forward(tokens, positions, self._slot_numbers[: len(tokens)], longest, None)])

    def prefill(self, slot: int, tokens: torch.Tensor, start: int, *, logits: bool) -> torch.Tensor | None:
        """Feeds `tokens` to `slot` from position `start` on; gives their logits when asked."""
        hidden = self._prefill_fixed(slot, tokens, start) if self.fixed else [self._prefill_free(slot, tokens, start)]
        if not logits:
            return None
        return self._logits(hidden)[: len(tokens)]

    def copy(self, source: int, target: int, count: int) -> None:
        """Copies the first `count` positions of one slot to another."""
        self.cache[:, target, :, :count].copy_(self.cache[:, source, :, :count])

    def clear(self, slot: int) -> None:
        """Zeroes a slot whose numbers went bad: a masked NaN would still spoil whoever takes the slot next."""
        self.cache[:, slot].zero_()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _logits(self, hidden: list[torch.Tensor]) -> torch.Tensor:
        a = self.weights.architecture
        parts = [
            F.linear(F.rms_norm(x, (a.hidden,), self.weights.norm, a.norm_epsilon), self.weights.head).float()
            for x in hidden
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_length(self, longest: int) -> int:
        bucket = FIXED_BUCKET if self.fixed else BUCKET
        return min(-(-(longest + 1) // bucket) * bucket, self._positions)

    def _forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, longest: int, only: int | None
    ) -> torch.Tensor:
        """Hidden states of rows (token, position, slot). `only`: all rows are in that slot, else row i is in slot i."""
        w, a = self.weights, self.weights.architecture
        count, length = len(tokens), self._attend_length(longest)
        cos, sin = self._rotation(positions)
        places = (self._row_offsets[slots] + positions[:, None]).view(-1)
        blocked = self._key_positions[:length] > positions[:, None]
        mask = torch.where(blocked, self._blocked, self._open)[:, None, None, :]
        group = a.heads // a.kv_heads
        x = F.embedding(tokens, w.embedding)
        for cache, layer in zip(self.cache, w.layers, strict=True):
            heads = self._heads(x, layer, cos, sin)
            cache.view(-1, a.head_dim).index_copy_(0, places, heads[:, a.heads :].reshape(-1, a.head_dim))
            seen = cache[:count] if only is None else cache[only].expand(count, -1, -1, -1)
            attended = F.scaled_dot_product_attention(
                heads[:, : a.heads].view(count, a.kv_heads, group, a.head_dim),
                seen[:, : a.kv_heads, :length],
                seen[:, a.kv_heads :, :length],
                attn_mask=mask,
            )
            x = self._finish_layer(x, attended, layer)
        return x

    def _prefill_free(self, slot: int, tokens: torch.Tensor, start: int) -> torch.Tensor:
        """Hidden states of a run of tokens in one causal pass."""
        w, a = self.weights, self.weights.architecture
        count, end = len(tokens), start + len(tokens)
        cos, sin = self._rotation(torch.arange(start, end))
        mask = None
        if start:
            later = self._key_positions[:end] > torch.arange(start, end)[:, None]
            mask = torch.where(later, self._blocked, self._open)
        group = a.heads // a.kv_heads
        x = F.embedding(tokens, w.embedding)
        for cache, layer in zip(self.cache, w.layers, strict=True):
            heads = self._heads(x, layer, cos, sin)
            cache[slot, :, start:end] = heads[:, a.heads :].transpose(0, 1)
            seen = cache[slot, :, None, :end].expand(-1, group, -1, -1)
            attended = F.scaled_dot_product_attention(
                heads[:, : a.heads].transpose(0, 1).reshape(a.kv_heads, group, count, a.head_dim),
                seen[: a.kv_heads],
                seen[a.kv_heads :],
                attn_mask=mask,
                is_causal=mask is None,
            )
            x = self._finish_layer(x, attended.view(a.heads, count, a.head_dim).transpose(0, 1), layer)
        return x

    def _prefill_fixed(self, slot: int, tokens: torch.Tensor, start: int) -> list[torch.Tensor]:
        """Hidden states of a run of tokens, in passes of the fixed shape."""
        rows = 1 if self.single_rows else self.rows
        slots = torch.full((rows,), slot)
        hidden = []
        for first in range(0, len(tokens), rows):
            chunk = F.pad(tokens[first : first + rows], (0, max(0, first + rows - len(tokens))))
            positions = torch.arange(start + first, start + first + rows)
            longest = min(start + len(tokens), start + first + rows) - 1
            hidden.append(self._forward(chunk, positions, slots, longest, slot))
        return hidden

    def _rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines for each row and head."""
        return self._cos[positions][:, self._head_kinds], self._sin[positions][:, self._head_kinds]

    def _heads(self, x: torch.Tensor, layer: Layer, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Queries, keys, values of each row, turned to its position: [rows, heads + 2 * kv_heads, head_dim] float32."""
        a = self.weights.architecture
        h = F.rms_norm(x, (a.hidden,), layer.input_norm, a.norm_epsilon)
        heads = F.linear(h, layer.qkv, layer.qkv_bias).float().view(len(x), -1, a.head_dim)
        return torch.addcmul(heads * cos, heads.roll(a.head_dim // 2, -1), sin)

    def _finish_layer(self, x: torch.Tensor, attended: torch.Tensor, layer: Layer) -> torch.Tensor:
        """The rest of a layer after attention."""
        a = self.weights.architecture
        x = x + F.linear(attended.reshape(len(x), -1).to(x.dtype), layer.output, layer.output_bias)
        h = F.rms_norm(x, (a.hidden,), layer.middle_norm, a.norm_epsilon)
        gate, up = F.linear(h, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate).mul_(up), layer.down, layer.down_bias)


def _rotary_tables(a: Architecture, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[positions, 2, head_dim] of cosines and signed sines; kind 1 leaves a head as it is."""
    frequencies = torch.tensor(a.rope.inverse_frequencies(a.head_dim), dtype=torch.float32)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
    cos = torch.stack([angles.cos().repeat(1, 2), torch.ones(positions, a.head_dim)], dim=1)
    sin = torch.stack([torch.cat([-angles.sin(), angles.sin()], dim=1), torch.zeros(positions, a.head_dim)], dim=1)
    return cos, sin
