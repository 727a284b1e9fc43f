"""Abort, the three ways to pause, and what the engine tells of itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def load(engine: Any) -> dict[str, Any]:
    found: dict[str, Any] = engine.get("/v1/loads").json()["loads"][0]
    return found


def test_an_abort_gives_back_the_tokens_so_far(engine: Any, prompt: list[int]) -> None:
    stream = engine.stream(prompt, rid="r-abort", beside={"return_logprob": True})
    stream.wait_tokens(5)
    assert engine.post("/abort_request", rid="r-abort").status_code == 200
    last = stream.result()
    meta = last["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert 5 <= len(last["output_ids"]) == meta["completion_tokens"] == len(meta["output_token_logprobs"]) < 1500
    assert meta["weight_versions"] == [{"version": "v0", "start": 0, "end": len(last["output_ids"])}]


def test_an_abort_matches_by_prefix_so_ids_need_one_length(engine: Any, prompt: list[int]) -> None:
    long, short, other = (engine.stream(prompt, rid=rid) for rid in ("g1_a", "g1", "h1"))
    for stream in (long, short, other):
        stream.wait_tokens(2)
    engine.post("/abort_request", rid="g1")
    assert short.result()["meta_info"]["finish_reason"]["type"] == "abort"
    assert long.result()["meta_info"]["finish_reason"]["type"] == "abort"
    other.wait_tokens(other.tokens + 3)
    engine.post("/abort_request", rid="h1")
    other.result()


def test_an_abort_of_an_unknown_id_is_ignored(engine: Any, prompt: list[int]) -> None:
    stream = engine.stream(prompt, rid="known-id")
    stream.wait_tokens(2)
    assert engine.post("/abort_request", rid="known").status_code == 200
    stream.wait_tokens(stream.tokens + 5)
    engine.post("/abort_request", abort_all=True)
    assert stream.result()["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_paused_answer_goes_on_where_it_stood(engine: Any, prompt: list[int], mode: str) -> None:
    whole = engine.ask(prompt, max_new_tokens=120, ignore_eos=True, temperature=0)["output_ids"]
    stream = engine.stream(prompt, max_new_tokens=120)
    stream.wait_tokens(5)
    assert engine.post("/pause_generation", mode=mode).json()["status"] == "ok"
    later = engine.stream(prompt, max_new_tokens=3)
    # At rest in retract mode, since all went back to the queue; in place the answer keeps its cache.
    assert engine.post("/flush_cache").status_code == (200 if mode == "retract" else 400)
    for _ in range(20):
        engine.get("/server_info")
    held = stream.tokens  # what was on its way from the engine to the reader has arrived by now
    for _ in range(20):
        engine.get("/server_info")
    assert stream.tokens == held, "tokens came while paused"
    assert not later.chunks, "a new request was served while paused"
    assert engine.post("/continue_generation").json()["status"] == "ok"
    last = stream.result()
    assert last["output_ids"] == whole
    assert last["meta_info"]["num_retractions"] == (1 if mode == "retract" else 0)
    assert later.result()["output_ids"] == whole[:3]


def test_a_pause_that_aborts_ends_all_with_their_tokens(engine: Any, prompt: list[int]) -> None:
    streams = [engine.stream(prompt) for _ in range(3)]
    for stream in streams:
        stream.wait_tokens(3)
    assert engine.post("/pause_generation", mode="abort").status_code == 200
    for stream in streams:
        last = stream.result()
        assert last["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(last["output_ids"]) >= 3
    engine.post("/continue_generation")
    assert len(engine.ask(prompt, max_new_tokens=2, ignore_eos=True)["output_ids"]) == 2


def test_the_cache_is_flushed_only_at_rest(engine: Any, prompt: list[int]) -> None:
    stream = engine.stream(prompt, rid="r-flush")
    stream.wait_tokens(2)
    assert engine.post("/flush_cache").status_code == 400
    engine.post("/abort_request", rid="r-flush")
    stream.result()
    wait_for(lambda: engine.post("/flush_cache").status_code == 200)


def test_a_flush_forgets_every_prompt(engine: Any) -> None:
    prompt = [0, *(3 + i % 250 for i in range(100))]
    engine.ask(prompt, max_new_tokens=1)
    wait_for(lambda: engine.post("/flush_cache").status_code == 200)
    assert engine.ask(prompt, max_new_tokens=1)["meta_info"]["cached_tokens"] == 0


def test_the_engine_tells_what_it_serves(engine: Any, model_dir: Any) -> None:
    assert engine.get("/ready").status_code == 200
    assert engine.get("/health").status_code == 200
    model = engine.get("/model_info").json()
    assert model["model_path"] == str(model_dir)
    assert model["weight_version"] == "v0"
    assert model["is_generation"] is True
    assert model["model_type"] == "qwen2"
    assert model["architectures"] == ["Qwen2ForCausalLM"]
    server = engine.get("/server_info").json()
    assert server["context_length"] == 2048
    assert server["max_running_requests"] >= 8
    assert server["internal_states"]


def test_the_engine_tells_its_load(engine: Any, prompt: list[int]) -> None:
    wait_for(lambda: load(engine)["num_running_reqs"] == 0)
    stream = engine.stream(prompt, rid="r-load")
    stream.wait_tokens(2)
    wait_for(lambda: load(engine)["num_running_reqs"] == 1)
    assert load(engine)["max_running_requests"] >= 8
    text = engine.get("/metrics").text
    for name in ("num_running_reqs", "num_queue_reqs", "token_usage", "gen_throughput"):
        assert f"sglang:{name}" in text
    engine.post("/abort_request", rid="r-load")
    stream.result()
    assert "sglang:generation_tokens_total" in engine.get("/metrics").text
    assert "sglang:e2e_request_latency_seconds" in engine.get("/metrics").text
