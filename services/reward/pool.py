"""A pool of grader processes: started when first needed, killed when one breaks a limit, refilled at the next request.

A request waits for a free place, never for a particular process. The process that was used last is used first, so that
a quiet service keeps one warm and the others cost nothing until they are needed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from services.reward.components import Case, Component, GradingError
from services.reward.grader import GraderProcess, Limits
from shared.job.spec import DataSpec


@dataclass(frozen=True)
class Graded:
    """A component's value, and the digest of the user's code that gave it."""

    value: float
    source: str = ""


class Pool:
    def __init__(self, size: int, limits: Limits, *, start_seconds: float) -> None:
        self._limits = limits
        self._places = asyncio.Semaphore(size)
        self._idle: list[GraderProcess] = []
        self._busy: set[GraderProcess] = set()
        self._sources: dict[str, str] = {}
        self._start_seconds = start_seconds
        self.started = 0

    async def grade(self, key: str, component: Component, case: Case) -> Graded:
        """Grade within the component's own time-out. `key` names the component in the processes' memory."""
        spec = component.spec
        async with self._places:
            process = await self._take()
            try:
                await self._prepare(process, key, component)
                request = {"op": "grade", "key": key, "text": case.text, "tokens": case.tokens, "row": case.row}
                answer = await self._ask(process, request, spec.timeout_seconds)
                return Graded(float(answer["value"]), self._sources[key])
            finally:
                await self._give_back(process)

    async def prepare(self, key: str, component: Component) -> str:
        """Only prepare the component (import, compile); the digest of its code."""
        async with self._places:
            process = await self._take()
            try:
                await self._prepare(process, key, component)
                return self._sources[key]
            finally:
                await self._give_back(process)

    async def sample(self, data: DataSpec) -> dict[str, Any] | None:
        """The first row of the job's data, where one is at hand."""
        async with self._places:
            process = await self._take()
            try:
                request = {"op": "sample", "data": data.model_dump(mode="json")}
                row: dict[str, Any] | None = (await self._ask(process, request, self._start_seconds))["row"]
                return row
            finally:
                await self._give_back(process)

    async def close(self) -> None:
        for process in [*self._idle, *self._busy]:
            await process.kill()
        self._idle.clear()

    async def _take(self) -> GraderProcess:
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                self._busy.add(process)
                return process
            await process.kill()
        process = GraderProcess(self._limits)
        try:
            await process.start()
        except OSError as error:
            raise GradingError(f"cannot start a grader process: {error}") from error
        self.started += 1
        self._busy.add(process)
        return process

    async def _give_back(self, process: GraderProcess) -> None:
        self._busy.discard(process)
        if process.alive:
            self._idle.append(process)

    async def _prepare(self, process: GraderProcess, key: str, component: Component) -> None:
        if key in process.prepared:
            return
        data, spec = component.data.model_dump(mode="json"), component.spec.model_dump(mode="json")
        request = {"op": "prepare", "key": key, "spec": spec, "data": data}
        answer = await self._ask(process, request, self._start_seconds)
        self._sources[key] = str(answer["source"])
        process.prepared.add(key)

    async def _ask(self, process: GraderProcess, request: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        answer = await process.ask({**request, "timeout_seconds": timeout_seconds}, timeout_seconds)
        if "error" in answer:
            raise GradingError(str(answer["error"]))
        return answer
