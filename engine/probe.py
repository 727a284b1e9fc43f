"""Whether fixed shapes are enough on this machine, found by trying.

Matrix products pick kernels by shape and split rows between threads, and which instructions compute a row's last bits
may depend on where the row stands. So at start the same tokens go through every row, and through `prefill` and `step`,
with noise in the other rows; if any two results differ in a bit, rows are computed one at a time, which is slow and
always the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.decoder import Decoder

PROBE_TOKENS = 3
PROBE_SPAN = 600  # more than one block of attention, so that neighbours make rows look further than they need


def settle(decoder: Decoder) -> str:
    """Tries the fixed shape and falls back to single rows; says which it is."""
    if consistent(decoder):
        return f"passes of {decoder.rows} rows give the same bits in every row"
    decoder.single_rows = True
    return f"passes of {decoder.rows} rows differ by row on this CPU: rows are computed one at a time"


def consistent(decoder: Decoder) -> bool:
    """Whether a few tokens give the same bits in each slot, by step and by prefill, whatever the other rows hold."""
    generator = torch.Generator().manual_seed(20)
    vocab = decoder.weights.architecture.vocab
    count = min(PROBE_TOKENS, decoder.length - 1)
    prompt = torch.randint(vocab, (count,), generator=generator)
    last = decoder.rows - 1
    decoder.reserve(min(PROBE_SPAN, decoder.length))
    results = [_stepped(decoder, prompt, slots, generator) for slots in ([0], [last // 2], [last], range(decoder.rows))]
    prefilled = decoder.prefill(last, prompt, 0, logits=True)
    if prefilled is not None:
        results.append(torch.softmax(prefilled, dim=-1)[-1])
    decoder.reset()
    return all(torch.equal(result, results[0]) for result in results)


def _stepped(decoder: Decoder, prompt: torch.Tensor, slots: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Probabilities after `prompt` in `slots`, which must agree; other slots get other tokens at other positions."""
    vocab, rows, span = decoder.weights.architecture.vocab, decoder.rows, min(PROBE_SPAN, decoder.length)
    chosen = list(slots)
    probabilities = torch.empty(0)
    for position, token in enumerate(prompt.tolist()):
        tokens = torch.randint(vocab, (rows,), generator=generator)
        positions = torch.randint(span, (rows,), generator=generator)
        tokens[chosen], positions[chosen] = token, position
        probabilities = torch.softmax(decoder.step(tokens, positions, span - 1), dim=-1)[chosen]
    if not all(torch.equal(row, probabilities[0]) for row in probabilities):
        return torch.full_like(probabilities[0], torch.nan)
    return probabilities[0]
