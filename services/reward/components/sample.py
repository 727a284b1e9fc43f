"""The first row of a job's data, to try its reward on before the job is accepted.

Only where a row is at hand without a network: a reasoning-gym task, a JSON-lines file. Whether the data is good is the
scheduler's check; here a file that cannot be read only means that there is nothing to try.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.reward.components.case import GradingError
from shared.job.spec import DataSpec

MAX_ROW_CHARACTERS = 1_000_000


def from_reasoning_gym(task: str, settings: dict[str, Any]) -> dict[str, Any]:
    import reasoning_gym

    try:
        dataset = reasoning_gym.create_dataset(task, **{"seed": 0, **settings, "size": 1})
        return {**dataset[0], "task": task}
    except Exception as error:  # each task checks its settings with errors of its own
        raise GradingError(f"reasoning-gym task {task!r}: {type(error).__name__}: {error}") from error


def from_lines(path: Path) -> dict[str, Any] | None:
    try:
        with path.open(encoding="utf-8") as lines:
            row = json.loads(lines.readline(MAX_ROW_CHARACTERS))
    except (OSError, ValueError):
        return None
    return row if isinstance(row, dict) else None


def sample_row(data: DataSpec) -> dict[str, Any] | None:
    if data.tasks:
        return from_reasoning_gym(data.tasks[0].reasoning_gym, data.tasks[0].settings)
    return from_lines(Path(data.jsonl)) if data.jsonl else None
