"""What people are told while a job runs: figures, and, when nothing moves, which stage waits and for what. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

RATE_WINDOW_SECONDS = 10.0


class Rate:
    """Something per second, over the last ten."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def add(self, count: int, now: float) -> None:
        if count:
            self._counts.append((now, count))
        while self._counts and self._counts[0][0] < now - RATE_WINDOW_SECONDS:
            self._counts.popleft()

    def per_second(self, now: float) -> float:
        self.add(0, now)
        return sum(count for _, count in self._counts) / RATE_WINDOW_SECONDS


@dataclass(frozen=True)
class Standing:
    """A job's figures at one moment. `worker_steps`: the version step of each live worker, -1 for none yet."""

    worker_steps: Sequence[int]
    oldest_step: int  # the oldest version that may still make training tokens
    newest_step: int  # the newest version anybody has told of
    waiting: int
    leased: int
    finished: int
    batched_step: int
    trained_step: int
    last_step: int
    open_groups: int
    unsettled_groups: int
    evaluation_left: int
    needs_workers: bool
    cancelling: bool = False


def standstill(now: Standing, seconds: float) -> str:
    """One line: which stage nothing comes out of, and what it waits for."""
    waits = f"nothing moved for {seconds:.0f} s: "
    unsettled = f"{now.unsettled_groups} groups are not settled (replay-buffer)"
    if now.cancelling:
        return waits + unsettled
    wants_answers = now.waiting + now.evaluation_left > 0
    if now.needs_workers and wants_answers and not now.worker_steps:
        return waits + f"{now.waiting + now.evaluation_left} samples wait and no rollout worker asks for work"
    if now.newest_step < 0 and wants_answers:
        return waits + "no version of the weights has been announced (trainer, weight-broadcast)"
    if now.leased:
        return waits + f"{now.leased} samples are with rollout workers, which make no progress"
    if now.needs_workers and now.waiting and all(step < now.oldest_step for step in now.worker_steps):
        held = max(now.worker_steps, default=-1)
        return waits + f"{now.waiting} samples wait for a worker with version {now.oldest_step} (the newest has {held})"
    if now.waiting:
        return waits + f"{now.waiting} samples wait and no worker takes them"
    if now.evaluation_left:
        return waits + f"{now.evaluation_left} evaluation samples wait for a worker at their version"
    if now.batched_step > max(now.trained_step, now.newest_step):
        return waits + f"step {now.newest_step + 1} is batched and the trainer has not made its version"
    if now.open_groups:
        return (
            waits + f"{now.finished} samples of {now.open_groups} groups are generated and not batched (reward, buffer)"
        )
    if now.trained_step < now.last_step:
        return waits + f"the trainer has {now.trained_step} of {now.last_step} steps in checkpoints"
    return waits + unsettled
