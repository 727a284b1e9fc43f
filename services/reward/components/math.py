"""math: 1 when math-verify finds the answer equal to the row's answer as mathematics, else 0.

Runs in a killable process only: symbolic comparison has no bound in time. The process is what ends it, so the library's
own alarms are off. An answer that it cannot read is wrong; a row's answer that it cannot read is a grading failure.
"""

from __future__ import annotations

import logging

from services.reward.components.case import Case, Component, GradingError, Prepared


def prepare(component: Component) -> Prepared:
    import math_verify  # pulls in sympy, a second and 60 MB

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # says at each call that its alarms are off

    def grade(case: Case) -> float:
        expected = component.expected(case)
        gold = math_verify.parse(f"${expected}$", parsing_timeout=0) or math_verify.parse(expected, parsing_timeout=0)
        if not gold:
            raise GradingError(f"math-verify cannot read the row's answer {expected[:80]!r}")
        answer = math_verify.parse(case.text or "", parsing_timeout=0)
        return float(bool(answer) and math_verify.verify(gold, answer, timeout_seconds=0))

    return Prepared(grade)
