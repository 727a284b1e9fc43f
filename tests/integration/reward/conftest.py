"""A real nats-server, the real reward process, and a job whose trajectories the test publishes itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.job.spec import JobSpec
from shared.wire import topics
from shared.wire.bus import NotFound, connect
from shared.wire.bus.api import Bus, Stored
from shared.wire.jobs import create_job
from shared.wire.messages import (
    Attempt,
    Digests,
    JobRecord,
    SampleKey,
    Sampling,
    Scored,
    Segment,
    Trajectory,
    body_headers,
    decode,
    encode,
    message_id,
)


class Services:
    """Starts processes of ours, and ends them by pid."""

    def __init__(self, nats_url: str, folder: Path) -> None:
        self._folder = folder
        self._env = {
            **os.environ, "SLIPSTREAM_NATS_URL": nats_url, "SLIPSTREAM_DATA_DIR": str(folder / "data"),
            "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
        }  # fmt: skip
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, module: str = "services.reward", **settings: str) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", module], env=self._env | settings, stderr=log)
        self._running.append(process)
        return process

    def log(self) -> str:
        return (self._folder / "log").read_text()

    def stop(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(10)


class Job:
    """One job on the bus: publishes trajectories, reads scores."""

    def __init__(self, bus: Bus, id: str) -> None:
        self.bus, self.id = bus, id

    async def publish(self, text: str, *, index: int = 0, group: int = 0, attempt: int = 1, **fields: Any) -> None:
        made = trajectory(self.id, text, index=index, group=group, attempt=attempt, **fields)
        await self.bus.publish(
            topics.trajectory_subject(made.key), encode(made), message_id=message_id(made.sample, made.attempt),
            headers=body_headers(made),
        )  # fmt: skip

    async def scored(self, count: int, seconds: float = 30.0) -> list[Stored]:
        """The first `count` scored messages, in order; fails when they do not come."""
        found: list[Stored] = []
        try:
            async with asyncio.timeout(seconds):
                while len(found) < count:
                    try:
                        async for stored in self.bus.follow(topics.scored(self.id).name):
                            found.append(stored)
                            if len(found) == count:
                                return found
                    except NotFound:
                        await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"{len(found)} of {count} scores after {seconds:g} s")
        return found

    async def count(self) -> int:
        return await self.bus.last_sequence(topics.scored(self.id).name)

    async def left(self) -> int:
        """Trajectories that are not acknowledged yet."""
        return len([s async for s in self.bus.follow(topics.trajectories(self.id).name, live=False)])


def trajectory(
    job: str, text: str, *, index: int = 0, group: int = 0, attempt: int = 1, row: dict[str, Any] | None = None,
    finish_reason: str = "stop", tokens: int = 3,
) -> Trajectory:  # fmt: skip
    ids = np.arange(tokens, dtype="<i4").tobytes()
    return Trajectory(
        sample=SampleKey(job, group, index).id, attempt=Attempt(1, attempt), worker="w", text=text,
        row={"answer": "12"} if row is None else row, finish_reason=finish_reason, sampling=Sampling(),
        segments=[Segment(role="assistant", token_ids=ids, mask=b"\x01" * tokens)],
        started_at=0.0, finished_at=1.0, digests=Digests(),
    )  # fmt: skip


def score_of(stored: Stored) -> Scored:
    return decode(Scored, stored.data)


@pytest.fixture
def services(nats_server: Callable[[], Any], tmp_path: Path) -> Iterator[tuple[Services, Any]]:
    server = nats_server()
    started = Services(server.url, tmp_path)
    yield started, server
    started.stop()


@pytest.fixture
def jobs() -> Callable[..., Any]:
    """`async with jobs(url, reward=[...]) as (job, ...)`: running jobs with their streams."""

    @asynccontextmanager
    async def make(url: str, *rewards: list[dict[str, Any]], states: tuple[str, ...] = ()) -> AsyncIterator[list[Job]]:
        bus = await connect(url, name="test")
        try:
            await bus.declare(topics.SHARED_STREAMS, topics.BUCKETS)
            made = []
            for number, reward in enumerate(rewards):
                id = f"job-{number}"
                spec = JobSpec.model_validate(
                    {"name": "job", "model": "tiny", "data": {"jsonl": "x.jsonl"}, "reward": reward,
                     "limits": {"max_attempts": 2}}
                )  # fmt: skip
                await bus.declare(topics.job_streams(id))
                record = JobRecord(
                    id=id, name="job", spec=spec.model_dump(mode="json"), digest="", created_at=time.time(),
                    updated_at=time.time(), state=states[number] if states else "running",
                )  # fmt: skip
                await create_job(bus, record)
                made.append(Job(bus, id))
            yield made
        finally:
            await bus.close()

    return make


@pytest.fixture
def eventually() -> Callable[..., Awaitable[None]]:
    async def wait(condition: Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not await condition():
            assert time.monotonic() < deadline, "the condition never held"
            await asyncio.sleep(0.02)

    return wait


@pytest.fixture
def read_score() -> Callable[[Stored], Scored]:
    return score_of
