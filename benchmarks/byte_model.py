"""A random byte-level Llama of 10M parameters, made at run time: large enough to be compute, small enough for a CPU.

Tokenizer and template are those of the shipped `tiny`, so a folder serves the engine, the trainer and `transformers`.
"""

from __future__ import annotations

from pathlib import Path

from shared.policy.tiny import END, PAD, START, VOCABULARY, make_tiny

CONTEXT = 1024


def make_10m(folder: Path) -> Path:
    """The folder, with the same weights on every machine."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True)
    make_tiny(folder)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=320,
        intermediate_size=896,
        num_hidden_layers=8,
        num_attention_heads=5,
        num_key_value_heads=5,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=START,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
