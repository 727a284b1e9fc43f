from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.job.load import BadJob, anchored, load_job, load_job_file
from shared.job.spec import JobSpec

Problems = Callable[..., dict[str, str]]

TEXT = """\
name: sums
model: smollm2-135m-instruct
data: {reasoning_gym: chain_sum, settings: {min_terms: 2}}
reward:
  - {name: solved, kind: exact, extract: last_number}
algorithm: {learning_rate: 1e-5}
"""


def test_text_bytes_and_plain_data_give_the_same_job() -> None:
    spec = load_job(TEXT)
    assert spec.algorithm.learning_rate == 1e-5
    assert load_job(TEXT.encode()) == spec
    assert load_job(spec.model_dump(mode="json")) == spec
    assert load_job(json.loads(spec.model_dump_json())).digest == spec.digest


def test_the_digest_says_what_a_file_means_and_not_how_it_is_written() -> None:
    written_out = TEXT + "seed: 0\nsampling:\n  temperature: 1\n"
    assert load_job(written_out).digest == load_job(TEXT).digest
    assert load_job(TEXT + "seed: 1\n").digest != load_job(TEXT).digest


def test_an_unknown_key_is_named_with_the_nearest_known_one(problems: Problems) -> None:
    assert problems(evalution={}) == {"evalution": "unknown key; did you mean evaluation?"}
    assert problems(algorithm={"lerning_rate": 1e-5}) == {
        "algorithm.lerning_rate": "unknown key; did you mean learning_rate?"
    }
    assert problems(algorithm={"stop_at": {"solverate": 0.5}}) == {
        "algorithm.stop_at.solve_rate": "is missing: End when a sampled evaluation's solve rate reaches this.",
        "algorithm.stop_at.solverate": "unknown key; did you mean solve_rate?",
    }
    reward = [{"name": "a", "kind": "exact", "wieght": 2}]
    assert problems(reward=reward) == {"reward.0.wieght": "unknown key; did you mean weight?"}


def test_a_key_in_the_wrong_section_is_told_its_place(problems: Problems) -> None:
    assert problems(learning_rate=1e-5) == {"learning_rate": "unknown key here; did you mean algorithm.learning_rate?"}


def test_a_key_like_none_is_told_what_there_is(problems: Problems) -> None:
    assert problems(checkpoint={"zzz": 1}) == {"checkpoint.zzz": "unknown key; known here: every, keep"}


@pytest.mark.parametrize(
    ("section", "path", "message"),
    [
        ({"steps": "8"}, "algorithm.steps", "must be a whole number, not the text '8'"),
        ({"steps": 8.5}, "algorithm.steps", "must be a whole number, not 8.5"),
        ({"steps": True}, "algorithm.steps", "must be a whole number, not true"),
        ({"steps": None}, "algorithm.steps", "must be a whole number, not nothing"),
        ({"steps": [8]}, "algorithm.steps", "must be a whole number, not a list"),
        ({"steps": 0}, "algorithm.steps", "must be at least 1, not 0"),
        ({"learning_rate": "1e-5x"}, "algorithm.learning_rate", "must be a number, not the text '1e-5x'"),
        ({"learning_rate": 2}, "algorithm.learning_rate", "must be at most 1, not 2"),
        ({"learning_rate": float("nan")}, "algorithm.learning_rate", "must be a finite number, not nan"),
        ({"kind": "gpro"}, "algorithm.kind", "must be one of grpo, sft, not the text 'gpro'; did you mean grpo?"),
        ({"kind": 3}, "algorithm.kind", "must be one of grpo, sft, not 3"),
        ("fast", "algorithm", "must be a section of `key: value` lines, not the text 'fast'"),
        (None, "algorithm", "must be a section of `key: value` lines, not nothing"),
    ],
)
def test_a_wrong_type_or_size_is_told_in_the_writers_words(
    problems: Problems, section: Any, path: str, message: str
) -> None:
    assert problems(algorithm=section) == {path: message}


def test_lists_names_and_switches_are_checked_too(problems: Problems) -> None:
    assert problems(reward={"name": "a"}) == {"reward": "must be a list, not a section"}
    assert problems(reward=[]) == {"reward": "must not be empty"}
    assert problems(deterministic="yes") == {"deterministic": "must be true or false, not the text 'yes'"}
    assert problems(sampling={"stop": "x"}) == {"sampling.stop": "must be a list, not the text 'x'"}
    assert problems(model="x" * 2000) == {"model": "is too long: at most 1024 characters"}
    assert problems(name="No Spaces")["name"].startswith("the text 'No Spaces' is no valid name")


def test_missing_fields_are_explained() -> None:
    with pytest.raises(BadJob) as error:
        load_job("name: a")
    assert {p.path: p.message for p in error.value.problems} == {
        "model": "is missing: A hub id, a local folder, a shipped name (smollm2-135m-instruct, tiny, tiny-qwen2), or "
        "job:NAME.",
        "data": "is missing: Where prompts come from.",
        "reward": "is missing: Components of the reward.",
    }


@pytest.mark.parametrize("text", ["", "- a", "hello", "a: [", "3"])
def test_a_text_that_is_no_job_is_one_problem_of_one_line(text: str) -> None:
    with pytest.raises(BadJob) as error:
        load_job(text)
    assert len(error.value.problems) == 1
    assert "\n" not in str(error.value)


def test_every_problem_is_told_at_once_but_not_without_end(job: dict[str, Any]) -> None:
    with pytest.raises(BadJob) as error:
        load_job({**job, **{f"key{i}": i for i in range(1000)}})
    assert len(error.value.problems) == 50


def test_paths_in_a_file_start_from_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: a\nmodel: ./policy\ndata: {jsonl: rows.jsonl}\n"
        "reward:\n  - {name: mine, kind: python, function: 'mine.py:score'}\n"
        "  - {name: other, kind: python, function: 'package.module:score'}\n"
    )
    spec = load_job_file(file)
    assert spec.model == str(tmp_path / "policy")
    assert spec.data.jsonl == str(tmp_path / "rows.jsonl")
    assert [component.function for component in spec.reward] == [f"{tmp_path}/mine.py:score", "package.module:score"]


def test_names_on_the_hub_are_no_paths(job: dict[str, Any], tmp_path: Path) -> None:
    spec = load_job({**job, "model": "owner/name", "data": {"huggingface": "owner/rows"}})
    assert anchored(spec, tmp_path) == spec
    here = load_job({**job, "data": {"huggingface": "../rows"}})
    assert anchored(here, tmp_path / "jobs").data.huggingface == str(tmp_path / "rows")


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadJob, match=r"cannot read .*none\.yaml: No such file or directory"):
        load_job_file(tmp_path / "none.yaml")
    with pytest.raises(BadJob, match="Is a directory"):
        load_job_file(tmp_path)


def test_a_job_cannot_be_changed(job: dict[str, Any]) -> None:
    spec = load_job(job)
    with pytest.raises(ValueError, match="frozen"):
        spec.seed = 3  # type: ignore[misc]


def test_the_surface_of_the_job_file_is_known() -> None:
    assert sorted(JobSpec.model_fields) == [
        "algorithm", "checkpoint", "data", "deterministic", "engine", "evaluation", "limits", "model", "name", "retain",
        "reward", "sampling", "seed",
    ]  # fmt: skip
