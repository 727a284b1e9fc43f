"""What a model folder's config.json says, as the numbers that the decoder needs.

Llama- and Qwen2-style decoders: RMS norm, rotary positions, grouped-query attention, gated SiLU. What such a config
can say and this engine does not compute (sliding windows, other activations) is refused by name, never ignored.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}


class ModelError(ValueError):
    """A model folder that cannot be served; the text says what is wrong and where, in one line."""


@dataclass(frozen=True)
class Rope:
    """Rotary positions: base frequency and how it is stretched for long contexts."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_length: int = 8192

    def inverse_frequencies(self, head_dim: int) -> list[float]:
        """One angle per pair of a head's dimensions, for one step of position."""
        base = [self.theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
        if self.kind == "linear":
            return [f / self.factor for f in base]
        if self.kind == "llama3":
            return [self._llama3(f) for f in base]
        return base

    def _llama3(self, frequency: float) -> float:
        wavelength = 2 * math.pi / frequency
        if wavelength < self.original_length / self.high_frequency_factor:
            return frequency
        if wavelength > self.original_length / self.low_frequency_factor:
            return frequency / self.factor
        span = self.high_frequency_factor - self.low_frequency_factor
        smooth = (self.original_length / wavelength - self.low_frequency_factor) / span
        return (1 - smooth) * frequency / self.factor + smooth * frequency


@dataclass(frozen=True)
class Architecture:
    """The shape of a decoder. Two folders with equal shapes can be swapped between two decode steps."""

    name: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_epsilon: float
    rope: Rope
    context_length: int
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face name -> shape of each tensor that the folder must hold."""
        h, inner = self.hidden, self.intermediate
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, h), "model.norm.weight": (h,)}
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab, h)
        linear = [
            ("self_attn.q_proj", self.query_size, h, self.qkv_bias),
            ("self_attn.k_proj", self.kv_size, h, self.qkv_bias),
            ("self_attn.v_proj", self.kv_size, h, self.qkv_bias),
            ("self_attn.o_proj", h, self.query_size, self.output_bias),
            ("mlp.gate_proj", inner, h, self.mlp_bias),
            ("mlp.up_proj", inner, h, self.mlp_bias),
            ("mlp.down_proj", h, inner, self.mlp_bias),
        ]
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            shapes[at + "input_layernorm.weight"] = shapes[at + "post_attention_layernorm.weight"] = (h,)
            for name, rows, columns, bias in linear:
                shapes[f"{at}{name}.weight"] = (rows, columns)
                if bias:
                    shapes[f"{at}{name}.bias"] = (rows,)
        return shapes


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, or `ModelError` naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent} is not a model folder: it has no {path.name}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value


def read_architecture(folder: Path) -> Architecture:
    """The architecture that `folder`/config.json describes."""
    if not folder.is_dir():
        raise ModelError(f"model folder {folder} does not exist")
    path = folder / "config.json"
    config = read_json(path)
    name = (config.get("architectures") or [None])[0]
    if name not in ARCHITECTURES:
        raise ModelError(f"{path} says architecture {name}; this engine serves {' and '.join(ARCHITECTURES)}")
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{path} says hidden_act {config['hidden_act']}; this engine computes silu only")
    if config.get("use_sliding_window"):
        raise ModelError(f"{path} asks for a sliding attention window, which this engine does not compute")
    try:
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        attention_bias = bool(config.get("attention_bias", False))
        return Architecture(
            name=name,
            vocab=int(config["vocab_size"]),
            hidden=hidden,
            intermediate=int(config["intermediate_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            norm_epsilon=float(config.get("rms_norm_eps", 1e-6)),
            rope=_rope(config),
            context_length=int(config.get("max_position_embeddings", 2048)),
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=attention_bias or name == "Qwen2ForCausalLM",
            output_bias=attention_bias and name == "LlamaForCausalLM",
            mlp_bias=bool(config.get("mlp_bias", False)),
        )
    except KeyError as error:
        raise ModelError(f"{path} lacks {error.args[0]}") from None
    except (TypeError, ValueError) as error:
        raise error if isinstance(error, ModelError) else ModelError(f"{path}: {error}") from None


def _rope(config: dict[str, Any]) -> Rope:
    """Rotary settings from either spelling: `rope_parameters`, or `rope_theta` beside `rope_scaling`."""
    settings = config.get("rope_parameters") or {
        "rope_theta": config.get("rope_theta", 10000.0),
        **(config.get("rope_scaling") or {}),
    }
    kind = settings.get("rope_type") or settings.get("type") or "default"
    if kind not in ("default", "linear", "llama3"):
        raise ModelError(f"config.json asks for {kind} rotary scaling; this engine knows default, linear and llama3")
    return Rope(
        theta=float(settings.get("rope_theta", 10000.0)),
        kind=kind,
        factor=float(settings.get("factor", 1.0)),
        low_frequency_factor=float(settings.get("low_freq_factor", 1.0)),
        high_frequency_factor=float(settings.get("high_freq_factor", 4.0)),
        original_length=int(settings.get("original_max_position_embeddings", 8192)),
    )


def stop_ids(folder: Path) -> frozenset[int]:
    """Every id that ends an answer, as config.json and generation_config.json say."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        if (folder / name).exists():
            value = read_json(folder / name).get("eos_token_id")
            found.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(found)
