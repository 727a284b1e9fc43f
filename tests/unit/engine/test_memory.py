"""The KV cache grows with the longest request, and what it held stays."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("fixed", [False, True])
def test_answers_go_on_unchanged_while_the_cache_grows(running: Any, save_model: Any, fixed: bool) -> None:
    _, folder = save_model("llama", max_position_embeddings=2048)
    engine = running(folder, slots=3, fixed=fixed, length=2048)
    small = engine.request([0, 5, 9], seed=1, max_new_tokens=200)
    engine.loop.submit([small])
    while len(small.output_ids) < 20:
        engine.loop.call(lambda: None).result(10)
    before = engine.loop.slots.decoder.cache.shape[3]
    large = engine.request([7] * 900, seed=2, max_new_tokens=4)
    engine.answer(large)
    engine.wait(small)
    assert engine.loop.slots.decoder.cache.shape[3] > before
    again = engine.ask([0, 5, 9], seed=1, max_new_tokens=200)
    assert again.output_ids == small.output_ids
    if fixed:
        assert again.raw == small.raw
