"""The decode loop without HTTP: slots, shared prompts, and changes between two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.architecture import read_architecture
from engine.requests import Request
from engine.weights import load_weights

PROMPT = [0, *range(40, 90)]


def held(engine: Any, request: Request, count: int) -> None:
    """Waits until a running request has `count` tokens."""
    while len(request.output_ids) < count:
        assert request.finish is None
        engine.loop.call(lambda: None).result(10)


def test_a_group_prefills_its_prompt_once(running: Any, llama: Any) -> None:
    engine = running(llama[1], slots=4)
    group = engine.answer(*(engine.request(PROMPT, seed=i) for i in range(8)))
    assert [r.cached_tokens for r in group] == [0] + [len(PROMPT) - 1] * 7
    assert len({tuple(r.output_ids) for r in group}) == 8


def test_sharing_a_prompt_changes_no_answer(running: Any, llama: Any) -> None:
    engine = running(llama[1], slots=4)
    group = engine.answer(*(engine.request(PROMPT, seed=i, max_new_tokens=10 + i) for i in range(8)))
    for i, one in enumerate(group):
        engine.loop.call(engine.loop.flush).result(10)
        alone = engine.ask(PROMPT, seed=i, max_new_tokens=10 + i)
        assert alone.cached_tokens == 0
        assert alone.output_ids == one.output_ids


def test_answers_of_any_length_in_few_slots_equal_lone_ones(running: Any, qwen2: Any) -> None:
    engine = running(qwen2[1], slots=3)
    lengths = [1, 30, 2, 17, 5, 60, 3, 1, 44, 8]
    asked = [engine.request(PROMPT[: 2 + i], seed=i, max_new_tokens=n) for i, n in enumerate(lengths)]
    together = [r.output_ids for r in engine.answer(*asked)]
    lone = [engine.ask(PROMPT[: 2 + i], seed=i, max_new_tokens=n).output_ids for i, n in enumerate(lengths)]
    assert together == lone


def test_no_tokens_asked_is_a_scoring_of_the_prompt(running: Any, llama: Any) -> None:
    found = running(llama[1]).ask(PROMPT, max_new_tokens=0, prompt_logprobs=True)
    assert found.finish == {"type": "length", "length": 0}
    assert found.output_ids == []
    assert len(found.prompt_logprobs) == len(PROMPT) - 1


def test_cached_prompts_of_old_weights_are_not_used(running: Any, llama: Any) -> None:
    engine = running(llama[1])
    engine.ask(PROMPT)
    weights = load_weights(llama[1], read_architecture(llama[1]), torch.float32)
    assert engine.loop.swap(weights, "v1", flush=False).result(10) is None
    assert engine.ask(PROMPT).cached_tokens == 0


def test_weights_swapped_under_way_leave_one_span_each(running: Any, llama: Any) -> None:
    engine = running(llama[1])
    request = engine.request(PROMPT, max_new_tokens=100)
    engine.loop.submit([request])
    cuts = []
    for number in (1, 2, 3):
        held(engine, request, 10 * number)
        engine.loop.call(lambda: engine.loop.pause("in_place")).result(10)
        cuts.append(len(request.output_ids))
        weights = load_weights(llama[1], read_architecture(llama[1]), torch.float32)
        engine.loop.swap(weights, f"v{number}", flush=False).result(10)
        engine.loop.call(engine.loop.resume).result(10)
    engine.wait(request)
    spans = request.version_spans(100)
    assert [s["version"] for s in spans] == ["v0", "v1", "v2", "v3"]
    assert [s["end"] for s in spans] == [*cuts, 100]
    assert [s["start"] for s in spans] == [0, *cuts]


def test_equal_weights_swapped_under_way_change_nothing(running: Any, llama: Any) -> None:
    engine = running(llama[1])
    whole = engine.ask(PROMPT, seed=4, max_new_tokens=60).output_ids
    request = engine.request(PROMPT, seed=4, max_new_tokens=60)
    engine.loop.submit([request])
    for mode in ("in_place", "retract"):
        held(engine, request, 10)
        engine.loop.call(lambda mode=mode: engine.loop.pause(mode)).result(10)
        weights = load_weights(llama[1], read_architecture(llama[1]), torch.float32)
        engine.loop.swap(weights, "v1", flush=False).result(10)
        engine.loop.call(engine.loop.resume).result(10)
    engine.wait(request)
    assert request.output_ids == whole


def test_requests_that_arrive_behind_an_update_get_the_new_weights(running: Any, llama: Any) -> None:
    engine = running(llama[1])
    first = engine.request(PROMPT, max_new_tokens=60)
    engine.loop.submit([first])
    weights = load_weights(llama[1], read_architecture(llama[1]), torch.float32)
    swapped = engine.loop.swap(weights, "v1", flush=True)
    second = engine.request(PROMPT, max_new_tokens=5)
    engine.answer(second)
    assert swapped.result(10) is True
    assert first.version_spans(60) == [{"version": "v0", "start": 0, "end": 60}]
    assert second.version_spans(5) == [{"version": "v1", "start": 0, "end": 5}]


def test_broken_weights_end_the_request_and_spoil_no_other(running: Any, save_model: Any, llama: Any) -> None:
    engine = running(llama[1], slots=2)
    good = engine.ask(PROMPT, seed=1).output_ids
    architecture = read_architecture(llama[1])
    broken = load_weights(llama[1], architecture, torch.float32)
    broken.layers[0].down.fill_(torch.nan)
    engine.loop.swap(broken, "bad", flush=True).result(10)
    for _ in range(2):
        found = engine.ask(PROMPT)
        assert found.finish["type"] == "abort"
        assert found.finish["status_code"] == 500
        assert "not numbers" in found.finish["message"]
        assert len(found.raw) == len(found.output_ids)
    engine.loop.swap(load_weights(llama[1], architecture, torch.float32), "v2", flush=True).result(10)
    both = engine.answer(*(engine.request(PROMPT, seed=1) for _ in range(2)))
    assert [r.output_ids for r in both] == [good, good]


def test_an_abort_reaches_waiting_requests_too(running: Any, llama: Any) -> None:
    engine = running(llama[1], slots=1)
    requests = [engine.request(PROMPT, max_new_tokens=100) for _ in range(4)]
    engine.loop.submit(requests)
    held(engine, requests[0], 3)
    engine.loop.call(lambda: engine.loop.abort("", everything=True)).result(10)
    engine.wait(*requests)
    assert all(r.finish["type"] == "abort" for r in requests)
    assert len(requests[0].output_ids) >= 3
    assert [len(r.output_ids) for r in requests[1:]] == [0, 0, 0]
    assert len(engine.ask(PROMPT, max_new_tokens=2).output_ids) == 2


def test_retracted_requests_come_back_first(running: Any, llama: Any) -> None:
    engine = running(llama[1], slots=2)
    requests = [engine.request(PROMPT, max_new_tokens=50) for _ in range(5)]
    engine.loop.submit(requests)
    held(engine, requests[1], 3)
    engine.loop.call(lambda: engine.loop.pause("retract")).result(10)
    assert list(engine.loop.waiting) == requests
    engine.loop.call(engine.loop.resume).result(10)
    engine.wait(*requests)
    assert [r.retractions for r in requests] == [1, 1, 0, 0, 0]


def test_the_folder_of_a_model_is_left_alone(llama: Any) -> None:
    folder: Path = llama[1]
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    load_weights(folder, read_architecture(folder), torch.float32)
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before
