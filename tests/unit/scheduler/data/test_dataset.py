from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from services.scheduler.data.dataset import Dataset, Stopped, load, open_source
from services.scheduler.data.reasoning_gym import ReasoningGymRows
from services.scheduler.data.rows import DataError
from shared.job.spec import JobSpec


def job(data: dict, prompts: int = 0, seed: int = 0, **rest) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "a",
            "model": "tiny",
            "data": data,
            "reward": [{"name": "exact", "kind": "exact"}],
            "evaluation": {"prompts": prompts},
            "seed": seed,
            **rest,
        }
    )


def read(spec: JobSpec, tmp_path: Path, fits=lambda row: "") -> Dataset:
    return load(spec, open_source(spec, tmp_path), fits, threading.Event())


def jsonl(tmp_path: Path, questions: list[str]) -> dict:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"question": q, "answer": "1"}) + "\n" for q in questions))
    return {"jsonl": str(file)}


SUMS = {"reasoning_gym": "chain_sum", "settings": {"max_digits": 1, "min_digits": 1, "max_terms": 3}, "size": 500}


def test_no_training_row_has_a_held_out_question_and_the_job_says_how_many_were_removed(tmp_path: Path) -> None:
    found = read(job(SUMS, prompts=40), tmp_path)
    held_out = {row.question for row in found.held_out}
    assert len(held_out) == 40
    training = [found.row_of(group).question for group in range(len(found.training))]
    assert not held_out & set(training)
    assert found.facts["removed_rows"] == 500 - len(training) > 0
    assert found.facts["rows"] == 500


def test_held_out_rows_of_a_file_are_taken_from_it_with_all_their_copies(tmp_path: Path) -> None:
    questions = [f"q{n % 10}" for n in range(30)]
    found = read(job(jsonl(tmp_path, questions), prompts=3), tmp_path)
    held_out = {row.question for row in found.held_out}
    assert len(held_out) == 3
    assert found.facts == {
        "rows": 30, "training_rows": 21, "held_out_rows": 3, "removed_rows": 9, "skipped_bad_rows": 0,
        "skipped_long_prompts": 0,
    }  # fmt: skip
    assert not held_out & {found.row_of(group).question for group in range(60)}


def test_white_space_at_the_ends_makes_no_other_question(tmp_path: Path) -> None:
    found = read(job(jsonl(tmp_path, ["a", " a ", "b"]), prompts=1), tmp_path)
    assert len(found.training) in (1, 2)
    assert {found.row_of(g).question.strip() for g in range(4)}.isdisjoint({found.held_out[0].question.strip()})


def test_the_same_job_file_gives_the_same_rows_and_another_seed_gives_others(tmp_path: Path) -> None:
    def drawn(seed: int) -> list[str]:
        found = read(job(SUMS, prompts=5, seed=seed), tmp_path)
        return [row.digest for row in found.held_out] + [found.row_of(group).digest for group in range(20)]

    assert drawn(1) == drawn(1) != drawn(2)


def test_parts_of_a_mix_are_labelled_in_training_and_held_out(tmp_path: Path) -> None:
    parts = [
        {"name": "one", "reasoning_gym": "chain_sum", "settings": {"max_digits": 1, "min_digits": 1}, "share": 3.0},
        {"name": "two", "reasoning_gym": "chain_sum", "settings": {"max_digits": 2, "min_digits": 2}},
    ]
    found = read(job({"parts": parts, "size": 80}, prompts=20), tmp_path)
    assert [row.part for row in found.held_out].count("two") == 5
    labels = [found.source.row(index).part for index in range(80)]
    assert (labels.count("one"), labels.count("two")) == (60, 20)
    assert found.row_of(0).fields["task"] == "chain_sum"


def test_a_bad_row_is_refused_with_its_line_or_skipped_and_counted(tmp_path: Path) -> None:
    data = jsonl(tmp_path, ["a", "b"])
    with open(data["jsonl"], "a") as file:
        file.write('{"question": \n{"question": "c", "answer": "1"}\n')
    with pytest.raises(DataError, match="line 3: is not JSON") as raised:
        read(job(data), tmp_path)
    assert raised.value.path == "data.on_bad_row"
    found = read(job({**data, "on_bad_row": "skip"}), tmp_path)
    assert (found.facts["skipped_bad_rows"], found.facts["training_rows"]) == (1, 3)


def test_a_long_prompt_is_refused_with_its_line_or_skipped_and_counted(tmp_path: Path) -> None:
    data = jsonl(tmp_path, ["a", "long", "b"])

    def fits(row) -> str:
        return "its prompt has 9 tokens" if row.question == "long" else ""

    with pytest.raises(DataError, match="line 2: its prompt has 9 tokens") as raised:
        read(job(data), tmp_path, fits)
    assert raised.value.path == "data.on_long_prompt"
    assert read(job({**data, "on_long_prompt": "skip"}), tmp_path, fits).facts["skipped_long_prompts"] == 1


def test_an_empty_data_set_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is empty"):
        read(job(jsonl(tmp_path, [])), tmp_path)


def test_too_few_questions_to_hold_out_and_to_train_on_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="only 2 distinct questions for 5") as raised:
        read(job(jsonl(tmp_path, ["a", "b", "a"]), prompts=5), tmp_path)
    assert raised.value.path == "evaluation.prompts"
    with pytest.raises(DataError, match="none is left to train on"):
        read(job(jsonl(tmp_path, ["a", "b", "a"]), prompts=2), tmp_path)


@pytest.mark.parametrize(
    ("data", "path", "said"),
    [
        ({"reasoning_gym": "chain_sums"}, "data.reasoning_gym", "did you mean 'chain_sum'"),
        ({"reasoning_gym": "chain_sum", "settings": {"min_terms": -3}}, "data.settings", "min_terms must be positive"),
        ({"reasoning_gym": "chain_sum", "settings": {"colour": 1}}, "data.settings", "colour"),
        ({"parts": [{"name": "a", "reasoning_gym": "nope"}]}, "data.parts.0.reasoning_gym", "has no task"),
    ],
)
def test_a_task_that_cannot_be_made_is_said_about_the_job_file(data: dict, path: str, said: str, tmp_path) -> None:
    with pytest.raises(DataError, match=said) as raised:
        open_source(job(data), tmp_path)
    assert raised.value.path == path


def test_rows_travel_as_plain_data(tmp_path: Path) -> None:
    source = open_source(job({"reasoning_gym": "chain_sum", "size": 3}), tmp_path)
    assert isinstance(source, ReasoningGymRows)
    for row in source:
        assert json.loads(json.dumps(row.fields)) == row.fields
        assert {"question", "answer", "metadata", "task"} <= row.fields.keys()


def test_nobody_waits_so_the_pass_stops(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    spec = job({**SUMS, "size": 5000})
    with pytest.raises(Stopped):
        load(spec, open_source(spec, tmp_path), lambda row: "", stop)
