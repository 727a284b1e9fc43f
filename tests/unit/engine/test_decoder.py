"""The decoder against transformers' forward pass on the same ids, float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.architecture import read_architecture
from engine.decoder import Decoder
from engine.weights import load_weights

TOLERANCE = 1e-3
PROMPT = [0, 17, 200, 33, 90, 4, 121, 55, 8, 255]


def expected(model: Any, ids: list[int], temperature: float) -> torch.Tensor:
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0] / temperature, dim=-1)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_logprobs_equal_those_of_transformers(
    request: Any, running: Any, kind: str, fixed: bool, temperature: float, top_p: float
) -> None:
    model, folder = request.getfixturevalue(kind)
    engine = running(folder, slots=4, fixed=fixed)
    asked = [
        engine.request(
            PROMPT[: 4 + i], max_new_tokens=100, temperature=temperature, top_p=top_p, seed=i, kept=True,
            prompt_logprobs=True,
        )
        for i in range(6)
    ]  # fmt: skip
    for found in engine.answer(*asked):
        count = len(found.prompt_ids)
        scores = expected(model, found.prompt_ids + found.output_ids, temperature)[count - 1 : -1]
        raw = scores.gather(1, torch.tensor(found.output_ids)[:, None])[:, 0]
        assert torch.tensor(found.raw) == pytest.approx(raw, abs=TOLERANCE)
        kept_mass = torch.stack([scores[i, ids].exp().sum() for i, ids in enumerate(found.kept)])
        assert torch.tensor(found.behaviour) == pytest.approx(raw - kept_mass.log(), abs=TOLERANCE)
        untempered = expected(model, found.prompt_ids, 1.0)
        prompt = untempered[:-1].gather(1, torch.tensor(found.prompt_ids[1:])[:, None])[:, 0]
        assert torch.tensor(found.prompt_logprobs) == pytest.approx(prompt, abs=TOLERANCE)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
        {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        },
    ],
)  # fmt: skip
def test_stretched_rotary_positions_equal_those_of_transformers(save_model: Any, rope: dict[str, Any]) -> None:
    model, folder = save_model("llama", rope_parameters=rope)
    ids = [3 + i * 7 % 250 for i in range(120)]
    decoder = Decoder(load_weights(folder, read_architecture(folder), torch.float32), 1, 160, fixed=False)
    decoder.reserve(len(ids))
    with torch.inference_mode():
        logits = decoder.prefill(0, torch.tensor(ids), 0, logits=True)
    assert logits is not None
    assert torch.log_softmax(logits, dim=-1) == pytest.approx(expected(model, ids, 1.0), abs=TOLERANCE)


def test_a_prompt_in_pieces_equals_the_prompt_in_one(llama: Any) -> None:
    model, folder = llama
    ids = [3 + i * 7 % 250 for i in range(90)]
    decoder = Decoder(load_weights(folder, read_architecture(folder), torch.float32), 2, 160, fixed=False)
    decoder.reserve(len(ids))
    with torch.inference_mode():
        parts = [decoder.prefill(1, torch.tensor(ids[a:b]), a, logits=True) for a, b in ((0, 1), (1, 50), (50, 90))]
    found = torch.cat([part for part in parts if part is not None])
    assert torch.log_softmax(found, dim=-1) == pytest.approx(expected(model, ids, 1.0), abs=TOLERANCE)


def test_bfloat16_stays_near_float32(running: Any, llama: Any) -> None:
    model, folder = llama
    found = running(folder, dtype=torch.bfloat16).ask(PROMPT, max_new_tokens=60, seed=3)
    scores = expected(model, PROMPT + found.output_ids, 1.0)[len(PROMPT) - 1 : -1]
    raw = scores.gather(1, torch.tensor(found.output_ids)[:, None])[:, 0]
    assert float((torch.tensor(found.raw) - raw).abs().mean()) < 0.1
