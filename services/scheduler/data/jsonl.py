"""Rows from JSON-lines files: one pass notes where each line starts, after which any row is read from its place."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from services.scheduler.data.rows import MAX_ROW_BYTES, BadRow, DataError, Row, row_from_columns


class JsonlRows:
    """Lines of `files`, in order; blank lines are no rows. Line numbers count from 1, as editors do."""

    def __init__(self, files: Sequence[Path], prompt: str, answer: str, *, path: str, answer_needed: bool) -> None:
        self.name = str(files[0]) if len(files) == 1 else f"{files[0].parent} ({len(files)} files)"
        self._files, self._prompt, self._answer = tuple(files), prompt, answer
        self._path, self._answer_needed = path, answer_needed
        self._offsets = array("Q")
        self._lines = array("Q")
        self._first_rows = array("Q")
        for file in self._files:
            if not file.is_file():
                what = "is a folder" if file.is_dir() else "does not exist"
                raise DataError(f"{file} {what}; a JSON-lines file is expected", path)

    def __iter__(self) -> Iterator[Row | BadRow]:
        self._offsets, self._lines, self._first_rows = array("Q"), array("Q"), array("Q")
        for file in self._files:
            self._first_rows.append(len(self._offsets))
            try:
                with file.open("rb") as stream:
                    offset = number = 0
                    while line := stream.readline(MAX_ROW_BYTES + 1):
                        number += 1
                        size = len(line)
                        while not line.endswith(b"\n") and size > MAX_ROW_BYTES and (rest := stream.readline(65536)):
                            size += len(rest)
                            if rest.endswith(b"\n"):
                                break
                        if line.strip():
                            self._offsets.append(offset)
                            self._lines.append(number)
                            yield self._parse(line, len(self._offsets) - 1, file, number)
                        offset += size
            except OSError as error:
                raise DataError(f"cannot read {file}: {error.strerror or error}", self._path) from error

    def row(self, index: int) -> Row:
        if not 0 <= index < len(self._offsets):
            raise DataError(f"{self.name} has {len(self._offsets)} rows, row {index} is asked for", self._path)
        file = self._files[bisect_right(self._first_rows, index) - 1]
        try:
            with file.open("rb") as stream:
                stream.seek(self._offsets[index])
                line = stream.readline(MAX_ROW_BYTES + 1)
        except OSError as error:
            raise DataError(f"cannot read {file}: {error.strerror or error}", self._path) from error
        row = self._parse(line, index, file, self._lines[index])
        if isinstance(row, BadRow):
            raise DataError(str(row), self._path)
        return row

    def held_out_rows(self, prompts: int) -> None:
        return None

    def _parse(self, line: bytes, index: int, file: Path, number: int) -> Row | BadRow:
        where = f"{file} line {number}"
        if len(line) > MAX_ROW_BYTES:
            return BadRow(index, where, f"is longer than {MAX_ROW_BYTES} bytes")
        try:
            columns = json.loads(line)
        except UnicodeDecodeError:
            return BadRow(index, where, "is not UTF-8 text")
        except json.JSONDecodeError as error:
            return BadRow(index, where, f"is not JSON: {error.msg} at column {error.colno}")
        except RecursionError:
            return BadRow(index, where, "is nested too deeply")
        return row_from_columns(
            columns,
            index=index,
            where=where,
            prompt=self._prompt,
            answer=self._answer,
            answer_needed=self._answer_needed,
        )
