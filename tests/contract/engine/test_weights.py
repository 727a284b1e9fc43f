"""New weights from a folder: at rest and under way, and which version made which token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest


def answer(engine: Any, prompt: list[int]) -> list[int]:
    return list(engine.ask(prompt, max_new_tokens=16, ignore_eos=True, temperature=0)["output_ids"])


def checksum(engine: Any) -> str:
    return str(engine.post("/weights_checker", action="checksum").json()["per_engine_checksum"])


def test_new_weights_change_the_answers_and_the_version(
    engine: Any, model_dir: Path, other_dir: Path, prompt: list[int]
) -> None:
    before, sum_before = answer(engine, prompt), checksum(engine)
    reply = engine.load(other_dir, "v1")
    assert reply.status_code == 200
    assert reply.json()["success"] is True
    assert engine.version() == "v1"
    assert engine.get("/model_info").json()["model_path"] == str(other_dir)
    assert answer(engine, prompt) != before
    assert checksum(engine) != sum_before
    assert engine.ask(prompt, max_new_tokens=2, ignore_eos=True)["meta_info"]["weight_versions"] == [
        {"version": "v1", "start": 0, "end": 2}
    ]
    engine.load(model_dir, "v0")
    assert answer(engine, prompt) == before
    assert checksum(engine) == sum_before


@pytest.mark.parametrize(("mode", "flush"), [("in_place", False), ("retract", True)])
def test_an_answer_under_way_carries_both_versions(
    engine: Any, other_dir: Path, prompt: list[int], mode: str, flush: bool
) -> None:
    stream = engine.stream(prompt, max_new_tokens=150)
    stream.wait_tokens(5)
    engine.post("/pause_generation", mode=mode)
    reply = engine.load(other_dir, "v1", flush_cache=flush)
    assert reply.status_code == 200, reply.text
    assert engine.version() == "v1"
    engine.post("/continue_generation")
    last = stream.result()
    spans = last["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == ["v0", "v1"]
    assert spans[0]["start"] == 0
    assert 5 <= spans[0]["end"] == spans[1]["start"]
    assert spans[1]["end"] == len(last["output_ids"]) == 150
    assert last["meta_info"]["weight_version"] == "v1"


def test_after_a_retraction_the_rest_is_what_the_new_weights_make_of_the_beginning(
    engine: Any, other_dir: Path, prompt: list[int]
) -> None:
    stream = engine.stream(prompt, max_new_tokens=60)
    stream.wait_tokens(5)
    engine.post("/pause_generation", mode="retract")
    assert engine.load(other_dir, "v1").status_code == 200
    engine.post("/continue_generation")
    last = stream.result()
    cut = last["meta_info"]["weight_versions"][0]["end"]
    rest = engine.ask(prompt + last["output_ids"][:cut], max_new_tokens=60 - cut, ignore_eos=True, temperature=0)
    assert last["output_ids"][cut:] == rest["output_ids"]


def test_keeping_the_cache_but_asking_for_a_flush_is_answered_400_and_names_no_new_version(
    engine: Any, model_dir: Path, other_dir: Path, prompt: list[int]
) -> None:
    stream = engine.stream(prompt, rid="r-kept")
    stream.wait_tokens(3)
    engine.post("/pause_generation", mode="in_place")
    sum_before = checksum(engine)
    reply = engine.load(other_dir, "v1", flush_cache=True)
    assert reply.status_code == 400
    assert reply.json()["success"] is False
    assert "not flushed" in reply.json()["message"]
    assert engine.version() == "v0"
    assert checksum(engine) != sum_before, "the weights are new all the same"
    engine.post("/continue_generation")
    engine.post("/abort_request", rid="r-kept")
    stream.result()
    assert engine.load(model_dir, "v0").status_code == 200


def test_without_a_pause_an_update_waits_for_the_answers_under_way(
    engine: Any, other_dir: Path, prompt: list[int]
) -> None:
    stream = engine.stream(prompt, max_new_tokens=60)
    stream.wait_tokens(2)
    assert engine.load(other_dir, "v1").status_code == 200
    last = stream.result()
    assert last["meta_info"]["weight_versions"] == [{"version": "v0", "start": 0, "end": 60}]
    assert engine.version() == "v1"


@pytest.mark.parametrize("trouble", ["missing folder", "no weights"])
def test_a_folder_that_cannot_be_loaded_leaves_the_old_weights(
    engine: Any, model_dir: Path, tmp_path: Path, prompt: list[int], trouble: str
) -> None:
    before = answer(engine, prompt)
    folder = tmp_path / "broken"
    if trouble == "no weights":
        folder.mkdir()
        shutil.copy(model_dir / "config.json", folder)
    reply = engine.load(folder, "v9")
    assert reply.status_code == 400
    assert reply.json()["success"] is False
    assert reply.json()["message"]
    assert engine.version() == "v0"
    assert answer(engine, prompt) == before


def test_a_version_can_be_renamed_alone(engine: Any, prompt: list[int]) -> None:
    before = answer(engine, prompt)
    reply = engine.post("/update_weight_version", new_version="v7")
    assert reply.json()["success"] is True
    assert reply.json()["new_version"] == "v7"
    assert engine.version() == "v7"
    assert answer(engine, prompt) == before


def test_an_update_session_is_opened_and_closed_once(engine: Any) -> None:
    assert engine.post("/end_weight_update").status_code == 400
    assert engine.post("/begin_weight_update").json() == {"success": True, "message": "Success"}
    assert engine.post("/begin_weight_update").status_code == 400
    assert engine.post("/end_weight_update").json() == {"success": True, "message": "Success"}


def test_checksums_name_each_tensor(engine: Any) -> None:
    found = engine.post("/weights_checker", action="checksum").json()
    assert found["success"] is True
    names = found["ranks"][0]["checksums"]
    assert any("embed_tokens" in name for name in names)
    assert len(names) > 10
    assert json.dumps(found)
