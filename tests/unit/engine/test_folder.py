"""Model folders: what is loaded, and what is refused with which words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.architecture import ModelError, read_architecture, stop_ids
from engine.weights import load_weights


@pytest.fixture
def folder(llama: Any, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(llama[1], tmp_path / "model"))


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_weights(folder, read_architecture(folder), torch.float32)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_named_gives_back_every_tensor_as_saved(request: Any, kind: str) -> None:
    model, folder = request.getfixturevalue(kind)
    weights = load_weights(folder, read_architecture(folder), torch.float32)
    saved = dict(model.state_dict())
    if weights.architecture.tied:
        saved.pop("lm_head.weight", None)
    found = dict(weights.named())
    assert set(found) == set(saved)
    assert all(torch.equal(found[name], saved[name]) for name in saved)


def test_a_sharded_folder_is_the_same_model(save_model: Any) -> None:
    _, whole = save_model("llama")
    _, parts = save_model("llama", shard="100KB")
    assert len(list(parts.glob("*.safetensors"))) > 1
    one, other = (load_weights(f, read_architecture(f), torch.float32).checksums() for f in (whole, parts))
    assert one == other


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert f"model folder {tmp_path / 'nowhere'} does not exist" == refusal(tmp_path / "nowhere")


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert f"model folder {folder} has no weights" in refusal(folder)


def test_a_folder_with_pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pytorch_model.bin is not safetensors" in refusal(folder)


def test_a_folder_without_a_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "is not a model folder: it has no config.json" in refusal(folder)


def test_a_config_that_is_not_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert "config.json cannot be read" in refusal(folder)


def test_a_config_that_lacks_a_number(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["hidden_size"]
    (folder / "config.json").write_text(json.dumps(config))
    assert "config.json lacks hidden_size" in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "this engine serves LlamaForCausalLM and Qwen2ForCausalLM"),
        ({"hidden_act": "gelu"}, "computes silu only"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn rotary scaling"),
        ({"use_sliding_window": True}, "sliding attention window"),
        ({"intermediate_size": 100}, "has shape"),
        ({"num_hidden_layers": 4}, "lacks 9 tensors"),
        ({"num_hidden_layers": 2}, "is no part of a LlamaForCausalLM"),
    ],
)
def test_a_config_that_asks_for_something_else(folder: Path, changes: dict[str, Any], words: str) -> None:
    change_config(folder, **changes)
    assert words in refusal(folder)


def test_a_truncated_weights_file(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    assert f"{path} cannot be read" in refusal(folder)


def test_a_missing_shard(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002.safetensors, which is not there" in refusal(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert refusal(folder) == f"model folder {folder} lacks 1 tensors, model.norm.weight the first"


def test_every_end_token_is_found(folder: Path) -> None:
    change_config(folder, eos_token_id=5)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [6, 7]}))
    assert stop_ids(folder) == {5, 6, 7}
