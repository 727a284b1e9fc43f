"""length: 1 for an answer of at most `target_tokens` tokens, target / tokens beyond. It looks at the tokens only."""

from __future__ import annotations

from services.reward.components.case import Component, GradingError, Prepared


def value(tokens: int, target: int) -> float:
    return 1.0 if tokens <= target else target / tokens


def prepare(component: Component) -> Prepared:
    target = component.spec.target_tokens
    if target < 1:
        raise GradingError("kind length needs target_tokens of at least 1")
    return Prepared(lambda case: value(case.tokens, target))
