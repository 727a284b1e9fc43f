"""A row of data, and what a source of rows is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from shared.wire.messages import digest

MAX_ROW_BYTES = 4 * 1024 * 1024


class DataError(ValueError):
    """Data that cannot be used: what, where and what to do, in one line. `path` names the job file's field."""

    def __init__(self, message: str, path: str = "data") -> None:
        super().__init__(" ".join(message.split()))
        self.path = path


@dataclass(frozen=True)
class Row:
    """`index` is its place in the source, `where` what a person looks for (a line of a file). `fields` travels with
    each sample to the reward; `part` labels shares of a mix."""

    index: int
    question: str
    answer: str
    where: str
    fields: dict[str, Any] = field(default_factory=dict)
    part: str = ""

    @cached_property
    def digest(self) -> str:
        return digest(json.dumps([self.question, self.answer, self.fields], sort_keys=True).encode())


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be read."""

    index: int
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class Source(Protocol):
    """Rows in a fixed order, in bounded memory."""

    name: str

    def __iter__(self) -> Iterator[Row | BadRow]:
        """Every row once; afterwards any row may be read by its index."""

    def row(self, index: int) -> Row:
        """Raises `DataError` when it is not there or cannot be read any more."""

    def held_out_rows(self, prompts: int) -> list[Row] | None:
        """Rows made for evaluation only, distinct by question, or None where they have to be taken from the rows."""


def plain(value: Any) -> Any:
    """`value` as JSON knows it: what MessagePack carries and a digest may cover."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()  # lone surrogates
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(entry) for entry in value), key=str)
    if hasattr(value, "tolist"):  # numpy numbers and arrays
        return plain(value.tolist())
    return str(value)


def row_from_columns(
    columns: Any, *, index: int, where: str, prompt: str, answer: str, answer_needed: bool = True
) -> Row | BadRow:
    """A row of a file: the prompt and answer columns as text, all columns as fields."""
    if not isinstance(columns, dict):
        return BadRow(index, where, f"holds a {type(columns).__name__}, an object with named columns is expected")
    for column in (prompt, answer) if answer_needed else (prompt,):
        if column not in columns:
            names = ", ".join(sorted(map(str, columns))[:8]) or "none"
            return BadRow(index, where, f"has no column {column!r} (columns: {names})")
    question, found = columns[prompt], columns.get(answer)
    if not isinstance(question, str) or not question.strip():
        what = "is empty" if isinstance(question, str) else f"holds a {type(question).__name__}, text is expected"
        return BadRow(index, where, f"column {prompt!r} {what}")
    if isinstance(found, bool) or not isinstance(found, str | int | float | None):
        return BadRow(index, where, f"column {answer!r} holds a {type(found).__name__}, text or a number is expected")
    fields = plain(columns)
    question, text = plain(question), plain("" if found is None else str(found))
    part = columns.get("part")
    return Row(
        index=index,
        question=question,
        answer=text,
        where=where,
        fields={**fields, "question": question, "answer": text},
        part=part if isinstance(part, str) else "",
    )
