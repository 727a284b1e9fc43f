from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.scheduler.data.jsonl import JsonlRows
from services.scheduler.data.rows import MAX_ROW_BYTES, BadRow, DataError, Row


def rows(*files: Path) -> JsonlRows:
    return JsonlRows(files, "question", "answer", path="data.jsonl", answer_needed=True)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def test_rows_keep_their_columns_and_are_read_again_from_their_place(file: Path) -> None:
    file.write_text('{"question": "1 + 1?", "answer": 2, "level": "easy"}\n\n{"question": "ä?", "answer": "b"}\n')
    source = rows(file)
    first, second = source
    assert (first.index, first.answer, first.where) == (0, "2", f"{file} line 1")
    assert first.fields == {"question": "1 + 1?", "answer": "2", "level": "easy"}
    assert (second.index, second.where) == (1, f"{file} line 3")
    assert source.row(1) == second
    assert source.row(0).digest == first.digest != second.digest


def test_a_file_may_end_without_a_newline_and_several_files_are_one_source(tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_text('{"question": "a", "answer": "1"}\n{"question": "b", "answer": "2"}')
    two.write_text('{"question": "c", "answer": "3"}\n')
    source = rows(one, two)
    assert [row.question for row in source if isinstance(row, Row)] == ["a", "b", "c"]
    assert [source.row(index).question for index in (2, 0, 1)] == ["c", "a", "b"]
    assert source.row(2).where == f"{two} line 1"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"question": "a", ', "is not JSON"),
        (b"[1, 2]", "an object with named columns is expected"),
        (b'{"answer": "1"}', "has no column 'question' (columns: answer)"),
        (b'{"question": "a"}', "has no column 'answer'"),
        (b'{"question": "  ", "answer": "1"}', "column 'question' is empty"),
        (b'{"question": 5, "answer": "1"}', "text is expected"),
        (b'{"question": "a", "answer": [1]}', "text or a number is expected"),
        (b'{"question": "\xff", "answer": "1"}', "is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_row_is_named_by_its_line_and_the_rest_is_read(file: Path, line: bytes, reason: str) -> None:
    good = b'{"question": "a", "answer": "1"}\n'
    file.write_bytes(good + line + b"\n" + good)
    first, bad, last = rows(file)
    assert isinstance(bad, BadRow)
    assert str(bad).startswith(f"{file} line 2: ")
    assert reason in str(bad)
    assert (first.question, last.question) == ("a", "a")


def test_a_line_that_never_ends_takes_no_memory_and_spoils_no_other(file: Path) -> None:
    good = b'{"question": "a", "answer": "1"}\n'
    file.write_bytes(good + b"x" * (MAX_ROW_BYTES + 200_000) + b"\n" + good)
    _, bad, last = source = rows(file)
    assert "is longer than" in str(bad)
    assert last.where.endswith("line 3")
    found = rows(file)
    assert len(list(found)) == 3
    assert found.row(2).question == "a"
    assert source


def test_text_that_no_encoding_can_hold_is_made_holdable(file: Path) -> None:
    file.write_text('{"question": "a \\ud800", "answer": "1"}\n')
    (row,) = rows(file)
    row.question.encode()
    json.dumps(row.fields).encode()


def test_a_missing_file_and_a_folder_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist") as raised:
        rows(tmp_path / "none.jsonl")
    assert raised.value.path == "data.jsonl"
    with pytest.raises(DataError, match="is a folder"):
        rows(tmp_path)


def test_a_row_that_is_gone_is_an_error(file: Path) -> None:
    file.write_text('{"question": "a", "answer": "1"}\n')
    source = rows(file)
    list(source)
    with pytest.raises(DataError, match="has 1 rows, row 7"):
        source.row(7)
    file.write_text("broken")
    with pytest.raises(DataError, match="line 1"):
        source.row(0)
