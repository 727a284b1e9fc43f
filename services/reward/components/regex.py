"""regex: 1 when `pattern` is found in the answer, else 0. In a killable process only: a pattern may take for ever."""

from __future__ import annotations

import re

from services.reward.components.case import Component, GradingError, Prepared


def prepare(component: Component) -> Prepared:
    if not component.spec.pattern:
        raise GradingError("kind regex needs a pattern")
    try:
        pattern = re.compile(component.spec.pattern)
    except re.error as error:
        raise GradingError(f"{component.spec.pattern!r} is not a regular expression: {error}") from error
    return Prepared(lambda case: float(pattern.search(case.text or "") is not None))
