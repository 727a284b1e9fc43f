"""Models of 0.7M parameters, made at run time: for tests, and for seeing the whole loop in a minute.

Byte-level: three special tokens and the 256 bytes, so every text has exactly one spelling. Weights are drawn by numpy
from a fixed seed, so every machine makes the same file. They know nothing; a supervised job warms them up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shared.policy.files import write_json
from shared.policy.weights import write_safetensors

HIDDEN, MLP, LAYERS, HEADS, KV_HEADS, CONTEXT = 128, 320, 4, 4, 2, 256
ROPE_THETA = 500.0  # the slowest rotary pair turns by 0.8 rad over the context
SPECIAL = ("<|pad|>", "<|start|>", "<|end|>")
PAD, START, END = range(3)
VOCABULARY = len(SPECIAL) + 256
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] }}"
    "{{ eos_token if message['role'] == 'assistant' else '\\n' }}{% endfor %}"
)


def make_tiny(folder: Path) -> None:
    """A Llama."""
    _make(folder, "llama", "LlamaForCausalLM", qkv_bias=False, seed=1)


def make_tiny_qwen2(folder: Path) -> None:
    """A Qwen2: biases on the query, key and value projections."""
    _make(folder, "qwen2", "Qwen2ForCausalLM", qkv_bias=True, seed=2)


def _make(folder: Path, model_type: str, architecture: str, qkv_bias: bool, seed: int) -> None:
    write_json(folder / "config.json", _config(model_type, architecture))
    write_json(folder / "generation_config.json", {"bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD})
    shapes = _shapes(qkv_bias)
    write_safetensors(folder / "model.safetensors", shapes, _draw(shapes, seed), "F32")
    _write_tokenizer(folder)


def _config(model_type: str, architecture: str) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": START,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def _shapes(qkv_bias: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    kv = HIDDEN // HEADS * KV_HEADS
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name, rows in (("q", HIDDEN), ("k", kv), ("v", kv)):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (rows, HIDDEN)
            if qkv_bias:
                shapes[f"{layer}self_attn.{name}_proj.bias"] = (rows,)
        shapes[f"{layer}self_attn.o_proj.weight"] = (HIDDEN, HIDDEN)
        shapes[f"{layer}mlp.gate_proj.weight"] = (MLP, HIDDEN)
        shapes[f"{layer}mlp.up_proj.weight"] = (MLP, HIDDEN)
        shapes[f"{layer}mlp.down_proj.weight"] = (HIDDEN, MLP)
        shapes[f"{layer}input_layernorm.weight"] = (HIDDEN,)
        shapes[f"{layer}post_attention_layernorm.weight"] = (HIDDEN,)
    shapes["model.norm.weight"] = (HIDDEN,)
    return shapes


def _draw(shapes: dict[str, tuple[int, ...]], seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Norms 1; matrices with the deviation that keeps a signal's size; what adds to the residual stream a little less.

    The embedding is ten times as large as usual: it is also the output layer, and with less a warm start takes twice
    the steps.
    """
    random = np.random.default_rng(seed)
    for name, shape in shapes.items():
        if name.endswith("norm.weight"):
            yield name, np.ones(shape, dtype=np.float32)
            continue
        deviation = 1 / math.sqrt(shape[-1])
        if name.endswith("embed_tokens.weight"):
            deviation = 0.2
        elif name.endswith("bias"):
            deviation = 0.02
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            deviation /= math.sqrt(LAYERS / 2)
        yield name, (random.standard_normal(shape) * deviation).astype(np.float32)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *byte_letters()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[START],
            "eos_token": SPECIAL[END],
            "pad_token": SPECIAL[PAD],
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        },
    )


def byte_letters() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte 0..255."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    letters, spare = [], 256
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(spare))
            spare += 1
    return letters
