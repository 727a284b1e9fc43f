from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from shared.policy.errors import ModelError
from shared.policy.weights import bfloat16_bits, read_header, weight_files, write_safetensors

SHAPES = {"a.weight": (2, 3), "b.bias": (4,)}


def values() -> list[tuple[str, np.ndarray]]:
    return [(name, np.arange(np.prod(shape), dtype=np.float32).reshape(shape)) for name, shape in SHAPES.items()]


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_what_is_written_is_a_safetensors_file(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, SHAPES, values(), dtype)
    with safe_open(path, framework="np") as file:
        assert sorted(file.keys()) == sorted(SHAPES)
        if dtype == "F32":
            assert all((file.get_tensor(name) == value).all() for name, value in values())
    assert {name: info.shape for name, info in read_header(path).items()} == SHAPES


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_bfloat16_takes_the_nearest_value(numbers: list[float]) -> None:
    exact = np.array(numbers, dtype=np.float32)
    with np.errstate(over="ignore"):
        taken = (bfloat16_bits(exact).astype(np.uint32) << 16).view(np.float32)
        below = (exact.view(np.uint32) & 0xFFFF0000).view(np.float32)
        above = ((exact.view(np.uint32) & 0xFFFF0000) + 0x10000).astype(np.uint32).view(np.float32)
    for one, got, low, high in zip(exact, taken, below, above, strict=True):
        if np.isfinite(high):
            error = abs(float(got) - float(one))
            assert error <= min(abs(float(low) - float(one)), abs(float(high) - float(one)))


def test_tensors_that_are_missing_or_out_of_order_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="tensors are missing"):
        write_safetensors(tmp_path / "a", SHAPES, values()[:1], "F32")
    with pytest.raises(ModelError, match=r"b\.bias .* came out of order"):
        write_safetensors(tmp_path / "b", SHAPES, values()[::-1], "F32")


def test_a_file_cut_short_anywhere_is_found(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, SHAPES, values(), "F32")
    whole = path.read_bytes()
    for length in (0, 4, 8, 20, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match="cut short") as error:
            read_header(path)
        assert "\n" not in str(error.value)
    path.write_bytes(whole + b"x")
    with pytest.raises(ModelError, match="belong to no tensor"):
        read_header(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
        ((20).to_bytes(8, "little") + b"{" * 20, "broken safetensors header"),
        ((12).to_bytes(8, "little") + b'{"a": 3}    ', "broken safetensors header"),
        ((2).to_bytes(8, "little") + b"[]", "broken safetensors header"),
        (
            (70).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}'.ljust(70) + b"1234",
            "fit",
        ),
    ],
)
def test_a_file_that_is_none_says_why(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_header(path)


def test_every_part_that_an_index_names_has_to_be_there_and_whole(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a.weight": "one.safetensors", "c": "two.safetensors"}}')
    write_safetensors(tmp_path / "one.safetensors", SHAPES, values(), "F32")
    with pytest.raises(ModelError, match=r"lacks two\.safetensors"):
        list(weight_files(tmp_path))
    write_safetensors(tmp_path / "two.safetensors", SHAPES, values(), "F32")
    with pytest.raises(ModelError, match="lacks tensor c, which"):
        list(weight_files(tmp_path))
    write_safetensors(tmp_path / "two.safetensors", {"c": (1,)}, [("c", np.zeros(1))], "F32")
    assert [path.name for path in weight_files(tmp_path)] == ["one.safetensors", "two.safetensors"]


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../one.safetensors"}}'])
def test_an_index_that_is_none_or_leads_outside_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError):
        list(weight_files(tmp_path))
