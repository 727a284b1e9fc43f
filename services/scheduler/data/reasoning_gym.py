"""Rows from reasoning-gym: made on demand, since item i of a task follows from (seed, i).

Several tasks lie one after the other: part p has the rows of its share, numbered on. The held-out rows come from item
numbers beyond the training rows; that alone does not make them other questions, so the split still compares texts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import reasoning_gym

from services.scheduler.data.rows import DataError, Row, plain
from shared.job.seeds import data_seed
from shared.job.spec import DataSpec

POOL_FACTOR, POOL_FLOOR = 20, 2000  # how many items are looked through for distinct held-out questions


class ReasoningGymRows:
    """The tasks of `spec`, as one source."""

    def __init__(self, spec: DataSpec, seed: int, held_out: int) -> None:
        self.name = "reasoning-gym " + ", ".join(part.reasoning_gym for part in spec.tasks)
        self._spec = spec
        self._rows = spec.task_rows
        self._starts = [0, *accumulate(self._rows)]
        wanted = spec.model_copy(update={"size": held_out}).task_rows if held_out else (0,) * len(spec.tasks)
        self._held_out = wanted
        self._pools = [max(POOL_FACTOR * count, POOL_FLOOR) if count else 0 for count in wanted]
        self._tasks: list[Any] = []
        for number, part in enumerate(spec.tasks):
            path = f"data.parts.{number}" if spec.parts else "data"
            size = max(1, self._rows[number] + self._pools[number])
            try:
                task = reasoning_gym.create_dataset(
                    part.reasoning_gym, size=size, seed=data_seed(seed, part.name), **part.settings
                )
                task[0]
            except Exception as error:  # settings reach the task's own code, which raises whatever it likes
                raise refused(part.reasoning_gym, error, path) from error
            self._tasks.append(task)

    def __iter__(self) -> Iterator[Row]:
        return (self.row(index) for index in range(self._starts[-1]))

    def row(self, index: int) -> Row:
        if not 0 <= index < self._starts[-1]:
            raise DataError(f"{self.name} has {self._starts[-1]} rows, row {index} is asked for", "data.size")
        task = bisect_right(self._starts, index) - 1
        return self._make(task, index - self._starts[task], index)

    def held_out_rows(self, prompts: int) -> list[Row]:
        rows: list[Row] = []
        questions: set[str] = set()
        for task, wanted in enumerate(self._held_out):
            found = 0
            for item in range(self._rows[task], self._rows[task] + self._pools[task]):
                if found == wanted:
                    break
                row = self._make(task, item, len(rows))
                if row.question not in questions:
                    questions.add(row.question)
                    rows.append(row)
                    found += 1
        return rows

    def _make(self, task: int, item: int, index: int) -> Row:
        part = self._spec.tasks[task]
        try:
            entry = self._tasks[task][item]
        except Exception as error:
            raise DataError(f"{part.reasoning_gym} item {item} cannot be made: {error!r}") from error
        question, answer = str(entry["question"]), entry.get("answer")
        fields = {"question": question, "answer": answer, "metadata": entry.get("metadata", {})}
        return Row(
            index=index,
            question=question,
            answer="" if answer is None else str(answer),
            where=f"{part.reasoning_gym} item {item}",
            fields=plain({**fields, "task": part.reasoning_gym}),
            part=part.name if self._spec.parts else "",
        )


def refused(task: str, error: Exception, path: str) -> DataError:
    """What is wrong with a task, said about the job file."""
    text = str(error) or type(error).__name__
    if "not registered" in text:
        return DataError(f"reasoning-gym has no task {task!r}{nearest(task)}", f"{path}.reasoning_gym")
    return DataError(f"{task} refuses its settings: {text}", f"{path}.settings")


def nearest(task: str) -> str:
    from difflib import get_close_matches

    from reasoning_gym.factory import DATASETS

    found = get_close_matches(task, DATASETS, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
