"""Processes for `python:` rewards: a job's own, so that a leak or a hang in one job's code costs no other job.

They differ from the built-in kinds' pool in the memory limit, which is the component's own, and in that they end with
the job: the user's module may hold whatever it likes for that long.
"""

from __future__ import annotations

from services.reward.components import Component
from services.reward.grader import Limits
from services.reward.pool import Pool


class PythonProcesses:
    """One small pool a component, made when the component first grades."""

    def __init__(self, processes: int, *, start_seconds: float) -> None:
        self._processes = processes
        self._start_seconds = start_seconds
        self._pools: dict[str, Pool] = {}

    def pool(self, key: str, component: Component) -> Pool:
        if key not in self._pools:
            limits = Limits(memory_mebibytes=component.spec.memory_mebibytes)
            self._pools[key] = Pool(self._processes, limits, start_seconds=self._start_seconds)
        return self._pools[key]

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.close()
        self._pools.clear()
