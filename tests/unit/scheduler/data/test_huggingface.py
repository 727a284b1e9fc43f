from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.scheduler.data.huggingface import huggingface_rows, split_files
from services.scheduler.data.rows import DataError
from shared.job.spec import DataSpec

ROWS = [{"question": f"q{n}", "answer": str(n), "level": n} for n in range(5)]


def spec(folder: Path, **rest) -> DataSpec:
    return DataSpec(huggingface=str(folder), **rest)


def questions(found: DataSpec, data_dir: Path) -> list[str]:
    source = huggingface_rows(found, data_dir, answer_needed=True)
    rows = list(source)
    assert [source.row(index).question for index in range(len(rows))] == [row.question for row in rows]
    return [row.question for row in rows]


def write(folder: Path, kind: str) -> None:
    folder.mkdir()
    if kind == "jsonl":
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind == "json":
        (folder / "train.json").write_text(json.dumps(ROWS))
    elif kind == "csv":
        (folder / "train.csv").write_text("question,answer,level\n" + "".join(f"q{n},{n},{n}\n" for n in range(5)))
    else:
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(ROWS), folder / "train-00000-of-00001.parquet")


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_a_folder_in_any_usual_format_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "set", kind)
    assert questions(spec(tmp_path / "set"), tmp_path / "data") == ["q0", "q1", "q2", "q3", "q4"]


def test_a_conversion_is_done_once_and_again_when_the_file_has_changed(tmp_path: Path) -> None:
    write(tmp_path / "set", "csv")
    for _ in range(2):
        questions(spec(tmp_path / "set"), tmp_path / "data")
    assert len(list((tmp_path / "data" / "datasets").iterdir())) == 1
    (tmp_path / "set" / "train.csv").write_text("question,answer\nnew,1\n")
    assert questions(spec(tmp_path / "set"), tmp_path / "data") == ["new"]


def test_splits_are_told_apart_by_file_name(tmp_path: Path) -> None:
    for name in ("train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "test-00000-of-00001.jsonl", "val.jsonl"):
        (tmp_path / name).write_text("{}\n")
    names = {split: [f.name for f in split_files(tmp_path, None, split)] for split in ("train", "test", "validation")}
    assert names["train"] == ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"]
    assert names["test"] == ["test-00000-of-00001.jsonl"]
    assert names["validation"] == ["val.jsonl"]
    with pytest.raises(DataError, match="no file of split 'extra'") as raised:
        split_files(tmp_path, None, "extra")
    assert raised.value.path == "data.split"


def test_files_that_name_no_split_are_train(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    assert [file.name for file in split_files(tmp_path, None, "train")] == ["rows.jsonl"]


def test_the_data_card_decides(tmp_path: Path) -> None:
    for name in ("main/a.jsonl", "socratic/b.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/*\n"
        "- config_name: socratic\n  data_files:\n  - split: train\n    path: [socratic/*]\n---\n# A set\n"
    )
    assert [file.name for file in split_files(tmp_path, "main", "train")] == ["a.jsonl"]
    assert [file.name for file in split_files(tmp_path, "socratic", "train")] == ["b.jsonl"]
    with pytest.raises(DataError, match="main, socratic") as raised:
        split_files(tmp_path, None, "train")
    assert raised.value.path == "data.subset"
    with pytest.raises(DataError, match="no subset 'other'"):
        split_files(tmp_path, "other", "train")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("train.json", "[{", "is not JSON"),
        ("train.parquet", "no", "is not Parquet"),
        ("notes.txt", "x", "has no .jsonl"),
    ],
)
def test_a_broken_data_set_is_said_so_in_one_line(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=said) as raised:
        huggingface_rows(spec(tmp_path), tmp_path / "data", answer_needed=True)
    assert "\n" not in str(raised.value)
    assert raised.value.path == "data.huggingface"
    assert not list((tmp_path / "data").rglob("*.part"))


def test_a_name_that_is_neither_folder_nor_hub_name_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither a folder nor"):
        huggingface_rows(spec(tmp_path / "a" / "b"), tmp_path, answer_needed=True)
