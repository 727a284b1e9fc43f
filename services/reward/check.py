"""Does a job's reward work? Asked by the gateway before a job is accepted, answered on `check.reward`.

Each component is made ready in a grader process (the pattern compiles, the task exists, the function imports) and,
where a data row is at hand, tried on that row's own right answer.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from services.reward.components import Case, Component, GradingError
from services.reward.pool import Pool
from services.reward.python_process import PythonProcesses
from shared.job.spec import JobSpec
from shared.wire.messages import CheckJob, CheckReply, Problem, decode, encode


def right_answer(component: Component, row: dict[str, Any]) -> str:
    """What a model that knows the row's answer would say, in the form that the component extracts."""
    answer = component.expected(Case("", 1, row))
    tag = component.spec.tag
    return f"<{tag}>{answer}</{tag}>" if component.spec.extract == "tag" else answer


BLAMED_FIELD = {"python": "function", "regex": "pattern"}


class RewardCheck:
    """Answers `CheckJob`."""

    def __init__(self, pool: Pool, *, start_seconds: float) -> None:
        self._pool = pool
        self._start_seconds = start_seconds
        self._checks = 0

    async def on_check(self, data: bytes) -> bytes:
        try:
            spec = JobSpec.model_validate(decode(CheckJob, data).spec)
        except ValidationError as error:
            problems = [
                Problem(path=".".join(str(part) for part in e["loc"]), message=e["msg"]) for e in error.errors()
            ]
            return encode(CheckReply(problems=problems))
        return encode(await self.check(spec))

    async def check(self, spec: JobSpec) -> CheckReply:
        problems: list[Problem] = []
        values: dict[str, float] = {}
        try:
            row = await self._pool.sample(spec.data)
        except GradingError as error:
            path = "data.parts" if spec.data.parts else "data.reasoning_gym"
            return CheckReply(problems=[Problem(path=path, message=str(error))])
        self._checks += 1
        python = PythonProcesses(1, start_seconds=self._start_seconds)
        try:
            for index, reward in enumerate(spec.reward):
                component = Component(reward, spec.data)
                try:
                    value = await self._try(component, row, python)
                except GradingError as error:
                    path = f"reward.{index}.{BLAMED_FIELD.get(reward.kind, 'kind')}"
                    problems.append(Problem(path=path, message=str(error)))
                    continue
                if value is not None:
                    values[reward.name] = value
        finally:
            await python.close()
        return CheckReply(problems=problems, facts={"reward_of_right_answer": values} if values else {})

    async def _try(self, component: Component, row: dict[str, Any] | None, python: PythonProcesses) -> float | None:
        """What the row's own answer is worth; None without a row."""
        key = f"check-{self._checks}/{component.spec.name}"
        pool = python.pool(key, component) if component.spec.kind == "python" else self._pool
        await pool.prepare(key, component)
        if row is None:
            return None
        return (await pool.grade(key, component, Case(right_answer(component, row), 1, row))).value
