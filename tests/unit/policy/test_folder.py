from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.policy import ModelError, open_folder

Change = Callable[..., Path]


def test_a_whole_folder_opens_with_what_others_need_to_know(folder: Path) -> None:
    model = open_folder(folder)
    assert (model.architecture, model.context_length) == ("LlamaForCausalLM", 256)
    assert [path.name for path in model.weights] == ["model.safetensors"]
    assert {path.name for path in model.tokenizer_files} == {
        "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip


def test_the_digest_covers_every_byte_that_decides(folder: Path) -> None:
    before = open_folder(folder).digest
    assert open_folder(folder).digest == before
    (folder / "notes.txt").write_text("no part of the model")
    assert open_folder(folder).digest == before
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert open_folder(folder).digest != before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no weights: neither model.safetensors nor its index is there"),
        ("tokenizer.json", "has no tokenizer.json; save a fast tokenizer beside the weights"),
    ],
)
def test_a_folder_that_lacks_a_file_says_which(folder: Path, name: str, message: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelError, match=message) as error:
        open_folder(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


def test_a_pickle_is_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is a pickle: save the model as safetensors"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[]", "holds no JSON object"), ("\xff", "is not JSON")]
)
def test_a_config_that_cannot_be_read_is_told(folder: Path, text: str, message: str) -> None:
    (folder / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelError, match=message):
        open_folder(folder)


def test_only_causal_language_models_are_models(changed: Change) -> None:
    with pytest.raises(ModelError, match="has the architecture BertModel; a causal language model"):
        open_folder(changed("config.json", architectures=["BertModel"]))
    with pytest.raises(ModelError, match="names no architecture"):
        open_folder(changed("config.json", architectures=None))


def test_a_model_has_to_say_its_context_length(changed: Change) -> None:
    with pytest.raises(ModelError, match="does not say the context length"):
        open_folder(changed("config.json", max_position_embeddings=None))


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        open_folder(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="is not a folder"):
        open_folder(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read_is_told(folder: Path) -> None:
    (folder / "config.json").chmod(0)
    with pytest.raises(ModelError, match="Permission denied"):
        open_folder(folder)
