"""Which evaluations a job has, and what the answers of one say. Pure.

A round is one mode (greedy or sampled) at one step; rounds are numbered through, so a round's number is the same after
any restart. Answers come in any order, perhaps twice; the first stored copy counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from shared.job.spec import EvaluationSpec
from shared.wire.messages import Score, Version

GREEDY, SAMPLED = "greedy", "sampled"
MAX_LISTED_PROMPTS = 4096


@dataclass(frozen=True)
class Round:
    number: int
    step: int
    mode: str
    prompts: int
    samples: int

    @property
    def size(self) -> int:
        return self.prompts * self.samples


def schedule(spec: EvaluationSpec, last_step: int) -> list[Round]:
    """All rounds of a job that ends at `last_step`: before the first step, every n steps, after the last."""
    if not spec.prompts:
        return []
    steps = [0, *(range(spec.every, last_step + 1, spec.every) if spec.every else ())]
    if steps[-1] != last_step:
        steps.append(last_step)
    return [
        Round(
            number=place * len(spec.modes) + nth,
            step=step,
            mode=mode,
            prompts=spec.prompts,
            samples=1 if mode == GREEDY else spec.samples,
        )
        for place, step in enumerate(steps)
        for nth, mode in enumerate(spec.modes)
    ]


@dataclass(frozen=True)
class Answer:
    """One graded answer. `solved`: the first component of the reward is 1."""

    valid: bool
    solved: bool
    reward: float
    components: Mapping[str, float] = field(default_factory=dict)


def answer(score: Score, first_component: str) -> Answer:
    """What a score says."""
    return Answer(
        valid=score.valid,
        solved=score.components.get(first_component) == 1.0,
        reward=score.total,
        components=score.components,
    )


Answers = Mapping[tuple[int, int], Answer]


def summary(round: Round, version: Version | None, answers: Answers, parts: Sequence[str]) -> dict[str, Any]:
    """What people are shown. `version` None: it was gone before the round could begin. `parts[p]` is the label of
    held-out prompt p, empty where the data has no parts.

    Prompts are the independent unit: an answer's figure is averaged within its prompt first, and standard errors are
    over prompts. Answers that could not be graded count nowhere but in `ungraded`.
    """
    graded = {place: found for place, found in sorted(answers.items()) if found.valid}
    labels = sorted({label for label in parts if label})
    body = {
        "round": round.number,
        "version_step": round.step,
        "version": "" if version is None else str(version),
        "mode": round.mode,
        "prompts": round.prompts,
        "samples": round.size,
        "ungraded": len(answers) - len(graded),
        "missing": round.size - len(answers),
        **figures(graded),
        "parts": {
            label: figures({place: found for place, found in graded.items() if parts[place[0]] == label})
            for label in labels
        },
    }
    if round.prompts <= MAX_LISTED_PROMPTS:
        solved = per_prompt(graded, "solved")
        body["solved"] = [solved.get(prompt) for prompt in range(round.prompts)]
    return body


def figures(graded: Answers) -> dict[str, Any]:
    """Solve rate, reward and each component over these answers."""
    solve_rate, solve_error = mean_and_error(list(per_prompt(graded, "solved").values()))
    reward, reward_error = mean_and_error(list(per_prompt(graded, "reward").values()))
    names = sorted({name for found in graded.values() for name in found.components})
    return {
        "graded": len(graded),
        "solve_rate": solve_rate,
        "solve_rate_stderr": solve_error,
        "reward_mean": reward,
        "reward_stderr": reward_error,
        "components": {
            name: mean_and_error([found.components[name] for found in graded.values() if name in found.components])[0]
            for name in names
        },
    }


def per_prompt(graded: Answers, figure: str) -> dict[int, float]:
    """The mean of `figure` over each prompt's answers."""
    values: dict[int, list[float]] = {}
    for (prompt, _), found in graded.items():
        values.setdefault(prompt, []).append(float(getattr(found, figure)))
    return {prompt: sum(each) / len(each) for prompt, each in values.items()}


def mean_and_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean and its standard error: None for nothing at all, which is not the same as 0; 0 for the error of one."""
    n = len(values)
    if not n:
        return None, None
    mean = sum(values) / n
    if n < 2:
        return mean, 0.0
    return mean, sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
