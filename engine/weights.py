"""A model folder's tensors, checked against its architecture and laid out for the decoder.

q, k and v are one matrix, gate and up another, so that a layer takes four matrix products. `named` gives them back
under their Hugging Face names, as views.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine.architecture import Architecture, ModelError, read_json

# Buffers that old checkpoints store although they follow from the config.
DERIVED = ("rotary_emb.inv_freq", "attn.masked_bias")


@dataclass
class Layer:
    """One decoder layer; a bias is None where the architecture has none."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    middle_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass
class Weights:
    """All tensors of a decoder in one dtype; `head` is `embedding` itself when they are tied."""

    architecture: Architecture
    embedding: torch.Tensor
    layers: list[Layer]
    norm: torch.Tensor
    head: torch.Tensor

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(Hugging Face name, view) for each tensor."""
        a = self.architecture
        yield "model.embed_tokens.weight", self.embedding
        yield "model.norm.weight", self.norm
        if not a.tied:
            yield "lm_head.weight", self.head
        for number, layer in enumerate(self.layers):
            at = f"model.layers.{number}."
            yield at + "input_layernorm.weight", layer.input_norm
            yield at + "post_attention_layernorm.weight", layer.middle_norm
            for names, fused, sizes in _fusions(layer, a):
                for kind, tensor in fused.items():
                    for name, part in zip(names, torch.split(tensor, sizes), strict=True):
                        yield f"{at}{name}.{kind}", part

    def checksums(self) -> dict[str, str]:
        """Hugging Face name -> sha256 of the bytes that the engine computes with."""
        return {name: _digest(tensor) for name, tensor in self.named()}


def _fusions(layer: Layer, a: Architecture) -> list[tuple[list[str], dict[str, torch.Tensor], list[int]]]:
    """For each fused matrix: the names inside it, its weight and bias, and how many rows each name has."""
    qkv = (["q_proj", "k_proj", "v_proj"], layer.qkv, layer.qkv_bias, [a.query_size, a.kv_size, a.kv_size])
    output = (["o_proj"], layer.output, layer.output_bias, [a.hidden])
    gate_up = (["gate_proj", "up_proj"], layer.gate_up, layer.gate_up_bias, [a.intermediate, a.intermediate])
    down = (["down_proj"], layer.down, layer.down_bias, [a.hidden])
    found = []
    for block, (names, weight, bias, sizes) in zip(
        ("self_attn", "self_attn", "mlp", "mlp"), (qkv, output, gate_up, down), strict=True
    ):
        tensors = {"weight": weight} | ({} if bias is None else {"bias": bias})
        found.append(([f"{block}.{name}" for name in names], tensors, sizes))
    return found


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def empty_weights(a: Architecture, dtype: torch.dtype) -> Weights:
    """Uninitialised tensors of the right shapes."""

    def make(*shape: int, wanted: bool = True) -> torch.Tensor | None:
        return torch.empty(shape, dtype=dtype) if wanted else None

    def need(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    layers = [
        Layer(
            input_norm=need(a.hidden),
            qkv=need(a.query_size + 2 * a.kv_size, a.hidden),
            qkv_bias=make(a.query_size + 2 * a.kv_size, wanted=a.qkv_bias),
            output=need(a.hidden, a.query_size),
            output_bias=make(a.hidden, wanted=a.output_bias),
            middle_norm=need(a.hidden),
            gate_up=need(2 * a.intermediate, a.hidden),
            gate_up_bias=make(2 * a.intermediate, wanted=a.mlp_bias),
            down=need(a.hidden, a.intermediate),
            down_bias=make(a.hidden, wanted=a.mlp_bias),
        )
        for _ in range(a.layers)
    ]
    embedding = need(a.vocab, a.hidden)
    return Weights(a, embedding, layers, need(a.hidden), embedding if a.tied else need(a.vocab, a.hidden))


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, sharded or not."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing or not names:
            raise ModelError(f"{index} names {missing[0] if missing else 'no file'}, which is not there")
        return [folder / name for name in names]
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        other = sorted(folder.glob("*.bin"))
        hint = f" ({other[0].name} is not safetensors: save it with safe_serialization)" if other else ""
        raise ModelError(f"model folder {folder} has no weights: no *.safetensors file in it{hint}")
    return found


def load_weights(folder: Path, a: Architecture, dtype: torch.dtype) -> Weights:
    """The weights of `folder` in `dtype`. Raises `ModelError` when one is missing, unknown or of another shape."""
    weights = empty_weights(a, dtype)
    targets = dict(weights.named())
    expected = a.tensors()
    missing = set(expected)
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - safe_open is no mapping
                    if name.endswith(DERIVED) or (name == "lm_head.weight" and a.tied):
                        continue
                    if name not in expected:
                        raise ModelError(f"{path} holds {name}, which is no part of a {a.name} with this config")
                    shape = tuple(file.get_slice(name).get_shape())
                    if shape != expected[name]:
                        raise ModelError(f"{path}: {name} has shape {shape}, the config asks for {expected[name]}")
                    targets[name].copy_(file.get_tensor(name))
                    missing.discard(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from None
    if missing:
        raise ModelError(f"model folder {folder} lacks {len(missing)} tensors, {min(missing)} the first")
    return weights
