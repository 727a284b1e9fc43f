"""reasoning_gym: the task's own score of the answer, between 0 and 1. Runs in a killable process only.

The row is the task's entry (question, answer, metadata). Which task made it is said by the row (`task`, else the
metadata's `source_dataset`), so that rows of several tasks may be mixed; else by the job's data section.
"""

from __future__ import annotations

from typing import Any

from services.reward.components.case import Case, Component, GradingError, Prepared


def task_of(row: dict[str, Any], default: str | None) -> str:
    metadata = row.get("metadata")
    named = row.get("task") or (metadata.get("source_dataset") if isinstance(metadata, dict) else None) or default
    if not named:
        raise GradingError("the data row does not say which reasoning-gym task made it")
    return str(named)


def prepare(component: Component) -> Prepared:
    import reasoning_gym  # two seconds and 90 MB

    settings = {part.reasoning_gym: part.settings for part in component.data.tasks}
    default = next(iter(settings), None)
    datasets: dict[str, Any] = {}

    def dataset(task: str) -> Any:
        if task not in datasets:
            try:
                datasets[task] = reasoning_gym.create_dataset(task, **{"seed": 0, "size": 1, **settings.get(task, {})})
            except Exception as error:  # each task checks its settings with errors of its own
                raise GradingError(f"reasoning-gym task {task!r}: {type(error).__name__}: {error}") from error
        return datasets[task]

    for task in settings:
        dataset(task)

    def grade(case: Case) -> float:
        task = task_of(case.row, default)
        entry = {"metadata": {}, **case.row, "answer": case.row.get("answer")}
        return float(dataset(task).score_answer(answer=case.text, entry=entry))

    return Prepared(grade)
