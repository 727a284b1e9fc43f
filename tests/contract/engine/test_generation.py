"""POST /generate: what comes back, how an answer ends, what is refused."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import torch

EOS = 1


def greedy(reference: Any, ids: list[int], count: int) -> list[int]:
    """What transformers would draw, ignoring the end token."""
    ids = list(ids)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(reference(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[-count:]


def test_an_answer_has_the_names_that_a_client_reads(engine: Any, prompt: list[int]) -> None:
    found = engine.ask(
        prompt, beside={"rid": "r-names", "return_logprob": True}, max_new_tokens=4, ignore_eos=True, temperature=0
    )
    meta = found["meta_info"]
    assert len(found["output_ids"]) == 4
    assert isinstance(found["text"], str)
    assert meta["id"] == "r-names"
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(prompt), 4)
    assert meta["weight_version"] == "v0"
    assert meta["weight_versions"] == [{"version": "v0", "start": 0, "end": 4}]
    assert meta["num_retractions"] == 0
    assert meta["cached_tokens"] >= 0
    assert meta["e2e_latency"] > 0
    assert [entry[1] for entry in meta["output_token_logprobs"]] == found["output_ids"]


def test_a_greedy_answer_is_the_models_own(engine: Any, reference: Any, prompt: list[int]) -> None:
    found = engine.ask(prompt, max_new_tokens=20, ignore_eos=True, temperature=0)
    assert found["output_ids"] == greedy(reference, prompt, 20)


def test_a_batch_is_answered_in_its_order(engine: Any, prompt: list[int]) -> None:
    prompts = [prompt, prompt[:5], prompt[:9]]
    found = engine.ask(prompts, max_new_tokens=6, ignore_eos=True, temperature=0)
    alone = [engine.ask(p, max_new_tokens=6, ignore_eos=True, temperature=0)["output_ids"] for p in prompts]
    assert [one["output_ids"] for one in found] == alone
    assert [one["meta_info"]["prompt_tokens"] for one in found] == [12, 5, 9]


def test_n_answers_to_one_prompt_come_as_a_list(engine: Any, prompt: list[int]) -> None:
    found = engine.ask(prompt, max_new_tokens=8, ignore_eos=True, n=4)
    assert len(found) == 4
    assert len({one["meta_info"]["id"] for one in found}) == 4


def test_a_prompt_may_be_text(engine: Any) -> None:
    reply = engine.post("/generate", text="hello", sampling_params={"max_new_tokens": 2, "temperature": 0})
    assert reply.json()["meta_info"]["prompt_tokens"] == 5


def test_a_stop_token_ends_the_answer_and_belongs_to_it(engine: Any, reference: Any, prompt: list[int]) -> None:
    expected = greedy(reference, prompt, 20)
    stop = expected[3]
    first = expected.index(stop)
    found = engine.ask(prompt, max_new_tokens=20, temperature=0, stop_token_ids=[stop])
    assert found["output_ids"] == expected[: first + 1]
    assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_a_stop_string_ends_the_answer_and_leaves_its_text(engine: Any, prompt: list[int]) -> None:
    whole = engine.ask(prompt, max_new_tokens=24, ignore_eos=True, temperature=0, skip_special_tokens=False)
    stop = next(c for c in whole["text"][4:] if c.isascii() and c.isprintable())
    found = engine.ask(
        prompt, max_new_tokens=24, ignore_eos=True, temperature=0, stop=[stop], skip_special_tokens=False
    )
    count = len(found["output_ids"])
    assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert found["output_ids"] == whole["output_ids"][:count]
    assert found["text"] == whole["text"].split(stop)[0]


def test_min_new_tokens_keeps_the_end_away(engine: Any, reference: Any, prompt: list[int]) -> None:
    first = greedy(reference, prompt, 1)[0]
    found = engine.ask(prompt, max_new_tokens=8, min_new_tokens=4, temperature=0, stop_token_ids=[first])
    assert found["meta_info"]["completion_tokens"] >= 4
    assert first not in found["output_ids"][:4]


def test_a_stream_repeats_all_that_came_before(engine: Any, prompt: list[int]) -> None:
    stream = engine.stream(prompt, max_new_tokens=12)
    last = stream.result()
    ids = [chunk["output_ids"] for chunk in stream.chunks]
    assert all(later[: len(earlier)] == earlier for earlier, later in itertools.pairwise(ids))
    assert len(last["output_ids"]) == 12
    assert last["meta_info"]["finish_reason"]["type"] == "length"
    assert all(chunk["meta_info"]["finish_reason"] is None for chunk in stream.chunks[:-1])


@pytest.mark.parametrize(
    "sampling",
    [{"top_p": 0}, {"top_p": 1.5}, {"temperature": -1}, {"top_k": 0}, {"max_new_tokens": -1}],
)
def test_a_wrong_sampling_parameter_is_refused(engine: Any, prompt: list[int], sampling: dict[str, Any]) -> None:
    reply = engine.post("/generate", input_ids=prompt, sampling_params=sampling)
    assert reply.status_code == 400
    assert next(iter(sampling)) in reply.json()["error"]["message"]


@pytest.mark.parametrize("sampling", [{"no_such_parameter": 1}, {"max_new_tokens": "many"}, {"top_p": "all"}])
def test_an_unknown_name_or_a_wrong_type_is_refused_with_a_bare_string(
    engine: Any, prompt: list[int], sampling: dict[str, Any]
) -> None:
    reply = engine.post("/generate", input_ids=prompt, sampling_params=sampling)
    assert reply.status_code == 400
    assert isinstance(reply.json()["error"], str)


def test_a_stream_that_is_refused_says_so_in_an_event(engine: Any, prompt: list[int]) -> None:
    reply = engine.post("/generate", input_ids=prompt, sampling_params={"top_p": 7}, stream=True)
    assert reply.status_code == 200
    first, last = [line for line in reply.text.splitlines() if line]
    assert "top_p" in json.loads(first.removeprefix("data: "))["error"]["message"]
    assert last == "data: [DONE]"


def test_an_unknown_field_beside_the_sampling_parameters_is_ignored(engine: Any, prompt: list[int]) -> None:
    found = engine.ask(prompt, beside={"no_such_field": 1}, max_new_tokens=1)
    assert len(found["output_ids"]) == 1


def test_a_prompt_longer_than_the_context_is_refused(engine: Any) -> None:
    reply = engine.post("/generate", input_ids=[5] * 2100, sampling_params={"max_new_tokens": 1})
    assert reply.status_code == 400
    assert "context length" in reply.json()["error"]["message"]
    assert "\n" not in reply.json()["error"]["message"]


def test_an_id_that_runs_is_refused_a_second_time(engine: Any, prompt: list[int]) -> None:
    stream = engine.stream(prompt, rid="r-twice")
    stream.wait_tokens(1)
    reply = engine.post("/generate", rid="r-twice", input_ids=prompt, sampling_params={"max_new_tokens": 1})
    assert reply.status_code == 400
    assert "Duplicate request ID" in reply.json()["error"]["message"]
    engine.post("/abort_request", rid="r-twice")
    assert stream.result()["meta_info"]["finish_reason"]["type"] == "abort"


def test_neither_text_nor_ids_is_refused(engine: Any) -> None:
    assert engine.post("/generate", sampling_params={"max_new_tokens": 1}).status_code == 400
