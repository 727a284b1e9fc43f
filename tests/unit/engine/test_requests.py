"""/generate bodies without an engine behind: what they mean and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from engine.generate import BadRequest, Limits, answer, parse_generate
from engine.requests import Request, Returned, SamplingParams, full

LIMITS = Limits(context_length=100, vocab=50, text=None)


def parse(**body: Any) -> Any:
    return parse_generate(body, LIMITS)


def refusal(**body: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        parse(**body)
    return str(caught.value)


def test_defaults_are_those_of_sglang() -> None:
    (request,) = parse_generate({"input_ids": [1, 2]}, Limits(context_length=200, vocab=50, text=None)).requests
    params = request.params
    assert (params.max_new_tokens, params.temperature, params.top_p, params.top_k) == (128, 1.0, 1.0, -1)


def test_temperature_zero_and_top_k_one_are_greedy() -> None:
    for sampling in ({"temperature": 0}, {"top_k": 1}, {"temperature": 1e-9}):
        (request,) = parse(input_ids=[1], sampling_params=sampling | {"max_new_tokens": 5}).requests
        assert request.params.temperature == 0


def test_copies_under_one_seed_get_seeds_of_their_own() -> None:
    found = parse(input_ids=[1], sampling_params={"n": 3, "sampling_seed": 40, "max_new_tokens": 5})
    assert [r.params.seed for r in found.requests] == [40, 41, 42]
    assert not found.single


def test_requests_without_a_seed_differ() -> None:
    found = parse(input_ids=[[1], [1]], sampling_params={"max_new_tokens": 5})
    assert found.requests[0].params.seed != found.requests[1].params.seed


def test_copies_without_a_seed_differ_too() -> None:
    found = parse(input_ids=[1], sampling_params={"n": 3, "max_new_tokens": 5})
    assert len({r.params.seed for r in found.requests}) == 3


def test_an_unbounded_answer_gets_what_the_context_leaves() -> None:
    (request,) = parse(input_ids=[1] * 90, sampling_params={"min_new_tokens": 20}).requests
    assert (request.params.max_new_tokens, request.params.min_new_tokens) == (10, 10)


def test_ids_of_a_batch_follow_the_given_one() -> None:
    sampling = {"max_new_tokens": 5}
    assert [r.rid for r in parse(input_ids=[[1], [2]], rid="a", sampling_params=sampling).requests] == ["a_0", "a_1"]
    assert [r.rid for r in parse(input_ids=[[1], [2]], rid=["x", "y"], sampling_params=sampling).requests] == ["x", "y"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "Either text or input_ids"),
        ({"text": "a", "input_ids": [1]}, "Either text or input_ids"),
        ({"text": "a"}, "the model folder has none"),
        ({"input_ids": []}, "not empty"),
        ({"input_ids": [[]]}, "must not be empty"),
        ({"input_ids": [50]}, "[0, 49]"),
        ({"input_ids": [-1]}, "[0, 49]"),
        ({"input_ids": [1.5]}, "[0, 49]"),
        ({"input_ids": [True]}, "[0, 49]"),
        ({"input_ids": [1] * 100}, "longer than the model's context length"),
        ({"input_ids": [1] * 50, "sampling_params": {"max_new_tokens": 51}}, "maximum context length of 100"),
        ({"input_ids": [1], "sampling_params": {"stop": "x", "max_new_tokens": 1}}, "stop needs a tokenizer"),
        ({"input_ids": [1], "sampling_params": {"min_p": 0.1}}, "min_p is not supported"),
        ({"input_ids": [1], "sampling_params": {"logit_bias": {"1": 2}}}, "logit_bias is not supported"),
        ({"input_ids": [1], "lora_path": "x"}, "lora_path is not supported"),
        ({"input_ids": [1], "sampling_params": {"sampling_seed": 2**63}}, "sampling_seed"),
        ({"input_ids": [1], "sampling_params": {"temperature": float("nan")}}, "temperature"),
        ({"input_ids": [1], "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 8}}, "min_new_tokens"),
        ({"input_ids": [[1], [2]], "rid": ["a"], "sampling_params": {"max_new_tokens": 1}}, "rid"),
        ({"input_ids": [[1], [2]], "sampling_params": [{}]}, "1 values for 2 prompts"),
        ({"input_ids": [1], "sampling_params": {"n": 5000, "max_new_tokens": 1}}, "n must be"),
        ({"input_ids": [1], "sampling_params": {"stop_token_ids": ["a"]}}, "stop_token_ids"),
    ],
)
def test_a_bad_body_is_refused_in_one_line(body: dict[str, Any], words: str) -> None:
    assert words in refusal(**body)
    assert "\n" not in refusal(**body)


def test_an_answer_under_way_says_only_what_was_reported() -> None:
    request = Request("r", [1, 2], SamplingParams(max_new_tokens=3), Returned(logprobs=True, kept_ids=True))
    request.version = "v0"
    request.output_ids, request.raw = [7, 8, 9], [-1.0, -2.0, -3.0]
    request.behaviour, request.kept = [-0.5, -0.6, -0.7], [[7], [8], [9]]
    request.finish = full(3)
    found = answer(request, 2, None)
    assert found["output_ids"] == [7, 8]
    assert found["meta_info"]["finish_reason"] is None
    assert found["meta_info"]["output_token_logprobs"] == [(-1.0, 7, None), (-2.0, 8, None)]
    assert found["meta_info"]["output_token_sampling_mask"] == [[7], [8]]
    assert found["meta_info"]["weight_versions"] == [{"version": "v0", "start": 0, "end": 2}]
    assert answer(request, 3, None)["meta_info"]["finish_reason"] == {"type": "length", "length": 3}


def test_a_version_that_made_no_token_has_no_span() -> None:
    request = Request("r", [1], SamplingParams())
    request.note_version("v0")
    request.note_version("v1")
    request.output_ids = [1, 2]
    request.note_version("v2")
    request.note_version("v2")
    request.output_ids = [1, 2, 3]
    request.note_version("v3")
    assert request.version_spans(3) == [
        {"version": "v1", "start": 0, "end": 2},
        {"version": "v2", "start": 2, "end": 3},
    ]
    assert request.version_spans(0) == [{"version": "v1", "start": 0, "end": 0}]
