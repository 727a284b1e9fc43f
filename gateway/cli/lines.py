"""A job's progress as lines: for pipes, logs and `--plain`."""

from __future__ import annotations

from typing import Any

from gateway.cli.progress import Progress
from gateway.cli.text import duration, number, percent, trend, with_error
from gateway.sse import JobEvent


def step_line(progress: Progress) -> str:
    """step 3/8  version 3.1  reward 0.310 ↑  solved 28.1%  ..."""
    body = progress.newest_step
    rewards = progress.history(progress.rewards)
    parts = [
        f"step {progress.step}/{progress.steps}",
        f"version {progress.version or '-'}",
        f"reward {number(body.get('reward_mean'))} {trend(rewards)}".rstrip(),
        f"solved {percent(body.get('exact_solve_rate'))}",
        f"staleness {number(progress.staleness, 2)}",
        f"{number(progress.tokens_per_second, 0)} tokens/s",
        progress.in_stages if not progress.ended else "",
        f"left {duration(progress.seconds_left)}" if not progress.ended else "",
    ]
    return "  ".join(part for part in parts if part)


def evaluation_line(body: dict[str, Any]) -> str:
    """evaluation of version 0.1, greedy: solved 0.480 ± 0.031, reward 0.512 ± 0.030 (256 prompts)"""
    line = (
        f"evaluation after step {body.get('version_step', '-')}, {body.get('mode', '-')}: "
        f"solved {with_error(body.get('solve_rate'), body.get('solve_rate_stderr'))}, "
        f"reward {with_error(body.get('reward_mean'), body.get('reward_stderr'))} ({body.get('prompts', '-')} prompts)"
    )
    parts = body.get("parts") or {}
    if len(parts) > 1:
        line += "; " + ", ".join(
            f"{name} {with_error(part.get('solve_rate'), part.get('solve_rate_stderr'))}"
            for name, part in parts.items()
            if isinstance(part, dict)
        )
    return line


def line_for(event: JobEvent, progress: Progress) -> str | None:
    """The line for an event that `progress` has already seen; None where there is nothing new to say."""
    body = event.body
    if event.event == "step":
        return step_line(progress)
    if event.event == "evaluation":
        return evaluation_line(body)
    if event.event == "state":
        reason = f": {body['reason']}" if body.get("reason") else ""
        return f"{progress.job} is {body.get('state', '-')}{reason}"
    if event.event == "notice":
        return f"{body.get('level', 'notice')}: {body.get('text', '')}"
    return None


def missing_line(missing: list[str]) -> str:
    return f"waiting: no {', no '.join(missing)} is alive (`slipstream ps` shows what runs)"
