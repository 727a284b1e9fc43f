"""A seed decides the draws, whatever else is in the batch and however often the answer was interrupted."""

from __future__ import annotations

from typing import Any

SAMPLING = {"ignore_eos": True, "temperature": 1.0}


def test_one_seed_gives_one_answer(engine: Any, prompt: list[int]) -> None:
    first = engine.ask(prompt, max_new_tokens=24, sampling_seed=11, **SAMPLING)
    second = engine.ask(prompt, max_new_tokens=24, sampling_seed=11, **SAMPLING)
    other = engine.ask(prompt, max_new_tokens=24, sampling_seed=12, **SAMPLING)
    assert first["output_ids"] == second["output_ids"] != other["output_ids"]


def test_neighbours_do_not_change_a_draw(engine: Any, prompt: list[int]) -> None:
    alone = engine.ask(prompt, max_new_tokens=24, sampling_seed=11, **SAMPLING)
    prompts = [prompt[: 3 + i] for i in range(5)] + [prompt]
    sampling = [
        {"max_new_tokens": 24, "sampling_seed": 20 + i, "temperature": 1.3, "ignore_eos": True} for i in range(5)
    ]
    sampling.append({"max_new_tokens": 24, "sampling_seed": 11, **SAMPLING})
    together = engine.post("/generate", input_ids=prompts, sampling_params=sampling).json()
    assert together[-1]["output_ids"] == alone["output_ids"]


def test_a_resumed_answer_draws_what_an_uninterrupted_one_would(engine: Any, prompt: list[int]) -> None:
    whole = engine.ask(prompt, max_new_tokens=30, sampling_seed=5, **SAMPLING)["output_ids"]
    for cut in (1, 13, 29):
        rest = engine.ask(prompt + whole[:cut], max_new_tokens=30 - cut, sampling_seed=5, **SAMPLING)
        assert whole[:cut] + rest["output_ids"] == whole
