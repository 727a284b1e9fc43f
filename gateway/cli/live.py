"""A job's progress as a display that renews itself, on a terminal."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gateway.cli.lines import evaluation_line, missing_line
from gateway.cli.progress import Progress
from gateway.cli.text import duration, number, percent, sparkline, trend

COLOURS = {"completed": "green", "failed": "red", "cancelled": "yellow", "paused": "yellow"}


def render(progress: Progress, now: float, width: int = 100) -> RenderableType:
    """The whole display."""
    head = Text.assemble(
        (progress.job, "bold"), "  ", (progress.state, COLOURS.get(progress.state, "cyan")),
        f"  {duration(progress.elapsed(now))}" if progress.created_at else "",
        f"  {progress.reason}" if progress.reason else "",
    )  # fmt: skip
    parts: list[RenderableType] = [head, _bar(progress, width), _numbers(progress)]
    parts += [Text(evaluation_line(body), style="dim") for body in list(progress.evaluations.values())[-6:]]
    parts += [Text(notice, style="yellow") for notice in progress.notices]
    if progress.missing:
        parts.append(Text(missing_line(progress.missing), style="yellow"))
    return Group(*parts)


def _bar(progress: Progress, width: int) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    left = f"{duration(progress.seconds_left)} left" if not progress.ended else ""
    bar = ProgressBar(total=max(1, progress.steps), completed=progress.step, width=max(10, min(40, width - 40)))
    row.add_row(f"step {progress.step}/{progress.steps}", bar, left)
    return row


def _numbers(progress: Progress) -> RenderableType:
    body = progress.newest_step
    rewards, solved = progress.history(progress.rewards), progress.history(progress.solve_rates)
    grid = Table.grid(padding=(0, 2))
    grid.add_row("reward", number(body.get("reward_mean")), trend(rewards), sparkline(rewards))
    grid.add_row("solved", percent(body.get("exact_solve_rate")), trend(solved), sparkline(solved))
    speed = f"{number(progress.tokens_per_second, 0)} tokens/s, version {progress.version or '-'}"
    grid.add_row("staleness", number(progress.staleness, 2), "", speed)
    grid.add_row("samples", "", "", progress.in_stages or "-")
    workers = progress.stages.get("workers")
    if workers is not None:
        grid.add_row("workers", str(workers), "", "")
    return grid


class Display:
    """`with Display() as d: d.show(progress)`; the last picture stays on the screen."""

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> Display:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, progress: Progress) -> None:
        self._live.update(render(progress, time.time(), self._console.width), refresh=True)
