"""What a component is given, and what it may say: a value, or that it could not grade."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shared.job.spec import DataSpec, RewardSpec


class GradingError(Exception):
    """The answer could not be graded, for a reason that is not the model's. One line; never to be read as reward 0."""


@dataclass(frozen=True)
class Case:
    """One answer: the part that is graded (None: the answer lacks it), its length in tokens, its data row."""

    text: str | None
    tokens: int
    row: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Component:
    """One line of the job's `reward` list, with the data section that says where the row's answer stands."""

    spec: RewardSpec
    data: DataSpec

    def expected(self, case: Case) -> str:
        """The row's right answer as text."""
        for column in (self.data.answer, "answer"):
            value = case.row.get(column)
            if value is not None:
                return str(value)
        raise GradingError(f"the data row has no {self.data.answer!r}, which reward {self.spec.name!r} compares with")


Grade = Callable[[Case], float]


@dataclass(frozen=True)
class Prepared:
    """A component that is ready to grade. `source`: digest of the user's code, empty for the built-in kinds."""

    grade: Grade
    source: str = ""
