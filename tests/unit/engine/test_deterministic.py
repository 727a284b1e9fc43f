"""Fixed shapes: a request's tokens and log-probabilities are the same to the last bit, wherever and beside whom."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

PROMPT = [0, 17, 200, 33, 90, 4, 121]


def noise(engine: Any, source: random.Random) -> Any:
    """A request like those that share a batch in real life: any prompt, any length, any settings."""
    ids = [source.randrange(259) for _ in range(source.randrange(1, 60))]
    return engine.request(
        ids, max_new_tokens=source.randrange(1, 40), temperature=source.choice([0.0, 0.5, 1.0, 1.7]),
        top_p=source.choice([1.0, 0.8]), top_k=source.choice([-1, 5]), seed=source.randrange(2**31),
        kept=source.random() < 0.3,
    )  # fmt: skip


def result(request: Any) -> tuple[list[int], list[float], list[float]]:
    return request.output_ids, request.raw, request.behaviour


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("slots", [3, 8, 16])
def test_the_same_request_in_every_slot_with_any_neighbours(
    request: Any, running: Any, kind: str, dtype: torch.dtype, slots: int
) -> None:
    engine = running(request.getfixturevalue(kind)[1], slots=slots, fixed=True, dtype=dtype)
    alone = result(engine.ask(PROMPT, seed=5, max_new_tokens=20))
    together = engine.answer(*(engine.request(PROMPT, seed=5, max_new_tokens=20) for _ in range(slots)))
    assert all(result(one) == alone for one in together), "the slots differ among themselves"
    source = random.Random(1)
    for place in range(slots):
        batch = [noise(engine, source) for _ in range(slots - 1)]
        wanted = engine.request(PROMPT, seed=5, max_new_tokens=20)
        batch.insert(place, wanted)
        engine.answer(*batch)
        assert result(wanted) == alone, f"another result in place {place}"


def test_more_requests_than_slots_change_nothing(running: Any, llama: Any) -> None:
    engine = running(llama[1], slots=4, fixed=True)
    alone = result(engine.ask(PROMPT, seed=5, max_new_tokens=20))
    source = random.Random(2)
    batch = [noise(engine, source) if i % 3 else engine.request(PROMPT, seed=5, max_new_tokens=20) for i in range(30)]
    engine.answer(*batch)
    assert all(result(one) == alone for one in batch[::3])


@pytest.mark.parametrize("cut", [1, 7, 19])
def test_a_resumed_answer_has_the_bits_of_an_uninterrupted_one(running: Any, qwen2: Any, cut: int) -> None:
    engine = running(qwen2[1], slots=4, fixed=True)
    whole = engine.ask(PROMPT, seed=9, max_new_tokens=20, temperature=0.8, top_k=40)
    engine.loop.call(engine.loop.flush).result(10)
    rest = engine.ask(PROMPT + whole.output_ids[:cut], seed=9, max_new_tokens=20 - cut, temperature=0.8, top_k=40)
    assert rest.output_ids == whole.output_ids[cut:]
    assert rest.raw == whole.raw[cut:]
    assert rest.behaviour == whole.behaviour[cut:]


def test_engines_of_different_size_agree(running: Any, llama: Any) -> None:
    results = [result(running(llama[1], slots=slots, fixed=True).ask(PROMPT, seed=5)) for slots in (1, 16)]
    assert results[0] == results[1]


def test_one_row_at_a_time_agrees_with_itself(running: Any, llama: Any) -> None:
    engine = running(llama[1], slots=3, fixed=True, single_rows=True)
    alone = result(engine.ask(PROMPT, seed=5))
    source = random.Random(3)
    wanted = [engine.request(PROMPT, seed=5) for _ in range(3)]
    engine.answer(noise(engine, source), wanted[0], noise(engine, source), *wanted[1:])
    assert all(result(one) == alone for one in wanted)
