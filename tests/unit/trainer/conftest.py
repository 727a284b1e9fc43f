"""A tiny seeded model, shared by the trainer's tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def tiny_llama():
    """A two-layer Llama of 40 words, float64 or float32, always the same weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(dtype: torch.dtype = torch.float64, seed: int = 0, **changes):
        config = LlamaConfig(
            **{
                "vocab_size": 40,
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "max_position_embeddings": 128,
                "initializer_range": 0.3,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "pad_token_id": 2,
                **changes,
            }
        )
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(dtype)

    return make
