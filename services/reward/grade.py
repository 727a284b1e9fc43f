"""From an answer to a score.

    components, each retried --> total = sum of weight * value, or: not valid, with the first error

An answer that could not be graded is never worth 0: it is not valid, and what becomes of its sample is the buffer's to
decide. Demonstrations (sft) are not graded: they are valid and worth 0, since nothing reads their reward.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from services.reward.components import Case, Component, GradingError, prepare, runs_inline
from services.reward.components.case import Prepared
from services.reward.pool import Graded, Pool
from services.reward.python_process import PythonProcesses
from shared.job.spec import JobSpec
from shared.wire.messages import Score, Trajectory

DEMONSTRATION = "demonstration"
GRADING_LIBRARIES = {"math": "math-verify", "reasoning_gym": "reasoning-gym"}


def total(values: dict[str, float], weights: dict[str, float]) -> float:
    return sum((weights[name] * value for name, value in values.items()), start=0.0)


def code_digest(components: Sequence[Component], sources: dict[str, str]) -> str:
    """What decided the score: the settings, the versions of the grading libraries, the user's code."""
    parts = []
    for component in components:
        kind = component.spec.kind
        library = metadata.version(GRADING_LIBRARIES[kind]) if kind in GRADING_LIBRARIES else ""
        parts.append([component.spec.model_dump(mode="json"), library, sources.get(component.spec.name, "")])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Failure:
    """The component that could not grade, after how many tries, and why."""

    component: str
    error: str
    attempts: int

    def __str__(self) -> str:
        tries = f" ({self.attempts} attempts)" if self.attempts > 1 else ""
        return f"reward {self.component!r} could not grade{tries}: {self.error}"


class JobGrader:
    """Grades the trajectories of one job. Linear kinds run here, the others in killable processes."""

    def __init__(self, job: str, spec: JobSpec, pool: Pool, python: PythonProcesses, *, name: str) -> None:
        self.components = [Component(reward, spec.data) for reward in spec.reward]
        self._weights = {reward.name: reward.weight for reward in spec.reward}
        self._attempts = spec.limits.max_attempts
        self._job, self._name = job, name
        self._pool, self._python = pool, python
        self._inline: dict[str, Prepared] = {}
        self._sources: dict[str, str] = {}

    async def grade(self, trajectory: Trajectory, *, alone: bool = False) -> Score:
        """The score of `trajectory`. `alone`: grade nothing in this process, since it may have ended the last one."""
        if trajectory.finish_reason == DEMONSTRATION:
            return Score(graded_by=self._name)
        started = time.monotonic()
        case = Case(trajectory.text, trajectory.trained_tokens(), trajectory.row)
        values: dict[str, float] = {}
        error = ""
        for component in self.components:
            outcome = await self._component(component, case, alone)
            if isinstance(outcome, Failure):
                error = str(outcome)
                break
            values[component.spec.name] = outcome.value
            self._sources[component.spec.name] = outcome.source
        worth = total(values, self._weights)
        if not error and not math.isfinite(worth):
            error = f"the weighted sum of the components is {worth}, which is no finite number"
        return Score(
            components=values,
            weights=self._weights,
            total=0.0 if error else worth,
            valid=not error,
            error=error,
            code_digest=code_digest(self.components, self._sources),
            graded_by=self._name,
            seconds=time.monotonic() - started,
        )

    async def _component(self, component: Component, case: Case, alone: bool) -> Graded | Failure:
        """Each failure is tried again, since most have passing causes (memory, a busy machine, a flaky service)."""
        name, last = component.spec.name, ""
        for _ in range(self._attempts):
            try:
                if not alone and runs_inline(component, case.text or ""):
                    return Graded(self._prepared(component).grade(case))
                pool = self._python.pool(name, component) if component.spec.kind == "python" else self._pool
                return await pool.grade(f"{self._job}/{name}", component, case)
            except GradingError as error:
                last = str(error)
        return Failure(name, last, self._attempts)

    def _prepared(self, component: Component) -> Prepared:
        name = component.spec.name
        if name not in self._inline:
            self._inline[name] = prepare(component)
        return self._inline[name]
