"""Log-probabilities: raw ones, behaviour ones under top-k and top-p, and those of the prompt."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

TOLERANCE = 1e-3


def scores(reference: Any, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Row i: log-probabilities of token i + 1, as transformers computes them."""
    with torch.inference_mode():
        return torch.log_softmax(reference(torch.tensor([ids])).logits[0] / temperature, dim=-1)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_raw_logprobs_are_the_tempered_models_before_any_cut(
    engine: Any, reference: Any, prompt: list[int], temperature: float, top_p: float
) -> None:
    found = engine.ask(
        prompt,
        beside={"return_logprob": True},
        max_new_tokens=40,
        ignore_eos=True,
        temperature=temperature,
        top_p=top_p,
    )
    expected = scores(reference, prompt + found["output_ids"], temperature)
    for i, (logprob, token, _) in enumerate(found["meta_info"]["output_token_logprobs"]):
        assert token == found["output_ids"][i]
        assert logprob == pytest.approx(float(expected[len(prompt) - 1 + i, token]), abs=TOLERANCE)
    assert found["meta_info"]["output_token_logprobs_length"] == 40


@pytest.mark.parametrize(("top_k", "top_p"), [(259, 0.9), (8, 1.0), (20, 0.7)])
def test_behaviour_logprobs_are_renormalised_over_the_kept_ids(
    engine: Any, reference: Any, prompt: list[int], top_k: int, top_p: float
) -> None:
    found = engine.ask(
        prompt,
        beside={"return_logprob": True, "return_sampling_mask": True},
        max_new_tokens=30, ignore_eos=True, temperature=0.8, top_k=top_k, top_p=top_p,
    )  # fmt: skip
    meta, ids = found["meta_info"], found["output_ids"]
    expected = scores(reference, prompt + ids, 0.8).exp()
    assert len(meta["output_token_sampling_mask"]) == len(meta["output_token_sampling_logprobs"]) == 30
    for i, (kept, logprob) in enumerate(
        zip(meta["output_token_sampling_mask"], meta["output_token_sampling_logprobs"], strict=True)
    ):
        p = expected[len(prompt) - 1 + i]
        assert ids[i] in kept
        assert len(kept) <= top_k
        assert logprob == pytest.approx(math.log(float(p[ids[i]] / p[kept].sum())), abs=TOLERANCE)
        mass = float(p[kept].sum())
        smallest = float(p[kept].min())
        assert len(kept) == top_k or mass >= top_p - TOLERANCE
        assert mass - smallest <= top_p + TOLERANCE
        others = p.clone()
        others[kept] = 0
        assert float(others.max()) <= smallest + TOLERANCE


def test_a_greedy_answer_has_behaviour_logprob_zero(engine: Any, prompt: list[int]) -> None:
    found = engine.ask(prompt, beside={"return_sampling_mask": True}, max_new_tokens=5, ignore_eos=True, temperature=0)
    assert found["meta_info"]["output_token_sampling_logprobs"] == [0.0] * 5
    assert found["meta_info"]["output_token_sampling_mask"] == [[i] for i in found["output_ids"]]


def test_a_mask_of_the_whole_vocabulary_is_refused(engine: Any, prompt: list[int]) -> None:
    reply = engine.post("/generate", input_ids=prompt, sampling_params={"max_new_tokens": 1}, return_sampling_mask=True)
    assert reply.status_code == 400
    assert "top_k" in reply.json()["error"]["message"]


def test_the_logprobs_of_a_prompt_are_the_models(engine: Any, reference: Any, prompt: list[int]) -> None:
    found = engine.ask(prompt, beside={"return_logprob": True, "logprob_start_len": 0}, max_new_tokens=1)
    entries = found["meta_info"]["input_token_logprobs"]
    expected = scores(reference, prompt)
    assert [token for _, token, _ in entries] == prompt
    assert entries[0][0] is None
    for i, (logprob, token, _) in enumerate(entries[1:]):
        assert logprob == pytest.approx(float(expected[i, token]), abs=TOLERANCE)


def test_an_answer_scored_again_as_a_prompt_has_the_same_logprobs(engine: Any, prompt: list[int]) -> None:
    drawn = engine.ask(prompt, beside={"return_logprob": True}, max_new_tokens=24, ignore_eos=True)
    again = engine.ask(
        prompt + drawn["output_ids"], beside={"return_logprob": True, "logprob_start_len": 0}, max_new_tokens=1
    )
    first = [entry[0] for entry in drawn["meta_info"]["output_token_logprobs"]]
    second = [entry[0] for entry in again["meta_info"]["input_token_logprobs"][len(prompt) :]]
    assert second == pytest.approx(first, abs=TOLERANCE)
