"""Safetensors files without torch: check what a folder holds, write what is made here.

A file is 8 bytes of header length, a JSON header {tensor: {dtype, shape, data_offsets}}, then the tensors' bytes
without gaps. numpy has no bfloat16, so bf16 tensors are written as their uint16 bits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shared.policy.errors import ModelError

MAX_HEADER_BYTES = 100 * 1024 * 1024
BYTES_PER_ELEMENT = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """What a header says of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """float32 rounded to bfloat16 (nearest, ties to even), as uint16 bits."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype(np.uint16)


def write_safetensors(
    path: Path, shapes: dict[str, tuple[int, ...]], tensors: Iterable[tuple[str, np.ndarray]], dtype: str
) -> None:
    """Write float32 `tensors`, which come in the order of `shapes`, as one file of `dtype` (F32 or BF16).

    Shapes are known beforehand so that the header can be written first and only one tensor is in memory at a time.
    """
    size = BYTES_PER_ELEMENT[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + size * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    expected = iter(shapes.items())
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, values in tensors:
            if (name, values.shape) != next(expected, None):
                raise ModelError(f"tensor {name} of shape {values.shape} came out of order while writing {path}")
            stored = bfloat16_bits(values) if dtype == "BF16" else np.ascontiguousarray(values, dtype="<f4")
            file.write(stored.tobytes())
        if file.tell() != 8 + len(text) + offset:
            raise ModelError(f"tensors are missing in {path}")


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a safetensors file; `ModelError` when it is cut short or no such file at all."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            size = path.stat().st_size
            if start.startswith(b"version "):
                raise ModelError(f"{path} is a Git LFS pointer, not the weights; run: git lfs pull")
            if len(start) < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                raise ModelError(f"{path} is not a safetensors file, or is cut short ({size} bytes)")
            raw = json.loads(file.read(length))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelError(f"{path} has a broken safetensors header: {error}") from error
    try:
        tensors = {
            name: TensorInfo(info["dtype"], tuple(info["shape"]), *info["data_offsets"])
            for name, info in raw.items()
            if name != "__metadata__"
        }
        _check_offsets(path, tensors, size - 8 - length)
    except (AttributeError, KeyError, TypeError) as error:
        raise ModelError(f"{path} has a broken safetensors header: {type(error).__name__}: {error}") from error
    return tensors


def _check_offsets(path: Path, tensors: dict[str, TensorInfo], data_bytes: int) -> None:
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].start):
        per_element = BYTES_PER_ELEMENT.get(tensor.dtype)
        if tensor.start != end or (
            per_element is not None and tensor.end - tensor.start != per_element * math.prod(tensor.shape)
        ):
            raise ModelError(f"{path}: the header's offsets of tensor {name} do not fit its shape")
        end = tensor.end
    if end > data_bytes:
        raise ModelError(f"{path} is cut short: it holds {data_bytes} of {end} bytes of weights; fetch it again")
    if end < data_bytes:
        raise ModelError(f"{path} has {data_bytes - end} bytes that belong to no tensor; fetch it again")


def weight_files(folder: Path) -> Iterator[Path]:
    """The weight files of a model folder, each checked to be whole; `ModelError` when weights are missing."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        if not read_header(single):
            raise ModelError(f"{single} holds no tensors")
        yield single
        return
    if not index.is_file():
        old = next(iter(sorted(folder.glob("pytorch_model*.bin"))), None)
        hint = f" ({old.name} is a pickle: save the model as safetensors)" if old else ""
        raise ModelError(f"{folder} has no weights: neither model.safetensors nor its index is there{hint}")
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted({str(name) for name in places.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is not an index of weights: {error}") from error
    for name in files:
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise ModelError(f"{folder} lacks {name}, which {index.name} names; fetch it again")
        found = read_header(path)
        missing = next((t for t, place in places.items() if place == name and t not in found), None)
        if missing is not None:
            raise ModelError(f"{path} lacks tensor {missing}, which {index.name} promises; fetch it again")
        yield path
