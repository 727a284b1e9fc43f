from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shared.policy import ModelError, resolve_model


def test_a_shipped_name_is_made_once(tmp_path: Path) -> None:
    first = resolve_model("tiny", tmp_path)
    before = (first.path / "model.safetensors").stat().st_mtime_ns
    again = resolve_model("tiny", tmp_path)
    assert first.path == tmp_path / "models" / "tiny"
    assert (again.path / "model.safetensors").stat().st_mtime_ns == before


def test_every_machine_makes_the_same_tiny_models(made: Path, tmp_path: Path) -> None:
    for name in ("tiny", "tiny-qwen2"):
        assert resolve_model(name, tmp_path).digest == resolve_model(name, made).digest


def test_a_path_is_taken_as_it_is(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(str(folder), tmp_path).path == folder
    monkeypatch.chdir(folder.parent)
    assert resolve_model("./model", tmp_path).path == folder
    assert resolve_model("model", tmp_path).path == folder
    with pytest.raises(ModelError, match="does not exist"):
        resolve_model("./other", tmp_path)


def test_a_job_stands_for_its_newest_checkpoint(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints" / "sums-1a2b3c"
    for version in ("9.1", "10.1", "10.2", "4.3"):
        shutil.copytree(folder, root / version / "model")
    (root / "11.1").mkdir()  # without a model: not a checkpoint
    (root / "12.1.set-aside" / "model").mkdir(parents=True)
    assert resolve_model("job:sums-1a2b3c", tmp_path).path == root / "10.2" / "model"


def test_a_job_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "tiny-sft-1a2b3c").mkdir(parents=True)
    with pytest.raises(ModelError, match=r"has no checkpoints under .*; did you mean job:tiny-sft-1a2b3c\?"):
        resolve_model("job:tiny-sft", tmp_path)
    with pytest.raises(ModelError, match="has no finished checkpoint"):
        resolve_model("job:tiny-sft-1a2b3c", tmp_path)
    for outside in ("job:..", "job:../models", "job:"):
        with pytest.raises(ModelError, match="has no checkpoints"):
            resolve_model(outside, tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2", "did you mean smollm2-135m-instruct?"),
        ("gpt5", "shipped are smollm2-135m-instruct, tiny, tiny-qwen2"),
        ("a/b/c", "is neither a folder, a hub id"),
    ],
)
def test_a_name_that_is_nothing_is_told_what_there_is(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ModelError) as error:
        resolve_model(name, tmp_path)
    assert message in str(error.value)


def test_a_hub_model_without_the_hub_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        ModelError, match=r"cannot fetch owner/name from the Hugging Face hub: .*without network"
    ) as error:
        resolve_model("owner/name", tmp_path)
    assert "\n" not in str(error.value)


def test_a_disk_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where a folder should be")
    with pytest.raises(ModelError, match="cannot write model tiny"):
        resolve_model("tiny", tmp_path)
