"""A job's data: one pass over the source sorts rows into training, held-out and unusable.

    source ──► bad rows (refuse or skip) ──► long prompts (refuse or skip) ──► held-out questions out ──► training rows

Held-out means disjoint by question: no training row has the text of a held-out question. Memory is 12 bytes a row.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.scheduler.data.huggingface import huggingface_rows
from services.scheduler.data.jsonl import JsonlRows
from services.scheduler.data.order import Order, permutation
from services.scheduler.data.reasoning_gym import ReasoningGymRows
from services.scheduler.data.rows import BadRow, DataError, Row, Source
from shared.job.seeds import derived_seed
from shared.job.spec import JobSpec

Fits = Callable[[Row], str]  # empty, or why the row's prompt is too long
LOOK_UP_EVERY = 256


class Stopped(Exception):
    """The pass over the data was given up, since nobody waits for it any more."""


@dataclass(frozen=True)
class Dataset:
    """What groups and evaluations draw from."""

    source: Source
    order: Order
    training: npt.NDArray[np.uint32]
    held_out: tuple[Row, ...]
    facts: dict[str, Any]

    def row_of(self, group: int) -> Row:
        """The row that training group `group` takes."""
        return self.source.row(int(self.training[self.order.place(group)]))


def open_source(spec: JobSpec, data_dir: Path) -> Source:
    """The rows that `spec.data` names; `DataError` when there is no such thing."""
    data = spec.data
    compared = any(component.kind in ("exact", "math", "reasoning_gym") for component in spec.reward)
    answer_needed = compared or spec.algorithm.kind == "sft"
    if data.tasks:
        return ReasoningGymRows(data, spec.seed, spec.evaluation.prompts)
    if data.jsonl is not None:
        files = [Path(data.jsonl).expanduser()]
        return JsonlRows(files, data.prompt, data.answer, path="data.jsonl", answer_needed=answer_needed)
    return huggingface_rows(data, data_dir, answer_needed=answer_needed)


def load(spec: JobSpec, source: Source, fits: Fits, stop: threading.Event) -> Dataset:
    """The pass. `DataError` names the first row that the job file does not allow; `Stopped` when `stop` is set."""
    indices, questions = array("I"), array("Q")
    bad = long = seen = 0
    for row in source:
        seen += 1
        if seen % LOOK_UP_EVERY == 0 and stop.is_set():
            raise Stopped
        if isinstance(row, BadRow):
            if spec.data.on_bad_row == "refuse":
                raise DataError(f"{row}; correct it, or set data.on_bad_row: skip", "data.on_bad_row")
            bad += 1
        elif too_long := fits(row):
            if spec.data.on_long_prompt == "refuse":
                raise DataError(
                    f"{row.where}: {too_long}; shorten it, or set data.on_long_prompt: skip", "data.on_long_prompt"
                )
            long += 1
        else:
            indices.append(row.index)
            questions.append(hashed(row.question))
    rows = np.array(indices, dtype=np.uint32)
    if not len(rows):
        why = f" ({bad} could not be read, {long} have too long a prompt)" if seen else ""
        raise DataError(f"{source.name} is empty: no row can be used{why}")
    hashes = np.array(questions, dtype=np.uint64)
    held_out = hold_out(spec, source, rows, hashes, fits)
    taken = np.isin(hashes, np.array([hashed(row.question) for row in held_out], dtype=np.uint64))
    training = rows[~taken]
    if not len(training):
        raise DataError(
            f"{source.name}: all {len(rows)} rows have one of the {len(held_out)} held-out questions, none is left to "
            "train on; lower evaluation.prompts or use more varied data",
            "evaluation.prompts",
        )
    facts = {
        "rows": seen,
        "training_rows": len(training),
        "held_out_rows": len(held_out),
        "removed_rows": int(taken.sum()),
        "skipped_bad_rows": bad,
        "skipped_long_prompts": long,
    }
    return Dataset(source, Order(spec.seed, len(training), spec.data.shuffle), training, tuple(held_out), facts)


def hold_out(
    spec: JobSpec, source: Source, rows: npt.NDArray[np.uint32], questions: npt.NDArray[np.uint64], fits: Fits
) -> list[Row]:
    """`evaluation.prompts` rows with distinct questions: made for it, or the first in a seeded order of the rows."""
    wanted = spec.evaluation.prompts
    if not wanted:
        return []
    found = source.held_out_rows(wanted)
    if found is None:
        found, chosen = [], set()
        for place in permutation(derived_seed(spec.seed, "held-out"), len(rows)):
            if len(found) == wanted:
                break
            if int(questions[place]) not in chosen:
                chosen.add(int(questions[place]))
                found.append(source.row(int(rows[place])))
    found = [row for row in found if not fits(row)]
    if len(found) < wanted:
        raise DataError(
            f"{source.name} has only {len(found)} distinct questions for {wanted} held-out prompts; lower "
            "evaluation.prompts or use more varied data",
            "evaluation.prompts",
        )
    return found


def hashed(question: str) -> int:
    """64 bits of a question's text, white space at its ends left out: two rows with one hash count as one question."""
    return int.from_bytes(hashlib.sha256(question.strip().encode()).digest()[:8], "little")
