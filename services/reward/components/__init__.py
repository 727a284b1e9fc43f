"""The kinds of reward component: one file a kind, one table that lists them.

A kind is a function from the component's settings to a grading function. It imports what is heavy when it is prepared,
so that a service that never needs a kind never pays for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from services.reward.components import exact, length, math, python, reasoning_gym, regex
from services.reward.components.case import Case, Component, GradingError, Prepared
from services.reward.extract import extract

KINDS: dict[str, Callable[[Component], Prepared]] = {
    "exact": exact.prepare,
    "length": length.prepare,
    "math": math.prepare,
    "python": python.prepare,
    "reasoning_gym": reasoning_gym.prepare,
    "regex": regex.prepare,
}

# These are linear in the answer's length and run no foreign code, so they cannot hang and need no process of their own.
# A pattern given by a user can take exponential time, and the others run libraries whose time nobody bounds.
LINEAR_KINDS = frozenset({"exact", "length"})
INLINE_CHARACTERS = 65_536


def runs_inline(component: Component, text: str) -> bool:
    """Whether grading `text` is bounded by its length, and that length is small."""
    linear = component.spec.kind in LINEAR_KINDS and component.spec.extract != "regex"
    return linear and len(text) <= INLINE_CHARACTERS


def compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise GradingError(f"{pattern!r} is not a regular expression: {error}") from error


def prepare(component: Component) -> Prepared:
    """`component` ready to grade whole answers: takes out the part to grade, then asks its kind.

    An answer without the part is worth 0, except for `length`, which looks at tokens only.
    """
    spec = component.spec
    prepared = KINDS[spec.kind](component)
    pattern = compiled(spec.pattern) if spec.extract == "regex" else None

    def grade(case: Case) -> float:
        part = extract(spec.extract, case.text or "", tag_name=spec.tag, pattern=pattern)
        if part is None and spec.kind != "length":
            return 0.0
        return prepared.grade(replace(case, text=part))

    return Prepared(grade, prepared.source)


__all__ = ["KINDS", "Case", "Component", "GradingError", "Prepared", "prepare", "runs_inline"]
