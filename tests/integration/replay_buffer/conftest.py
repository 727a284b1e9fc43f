"""A real server, real replay-buffer processes, and what the other services do around them."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.job.spec import JobSpec
from shared.wire import topics
from shared.wire.bus import BusError, connect
from shared.wire.bus.api import Bus
from shared.wire.jobs import change_job, create_job
from shared.wire.ledger import read_ledger
from shared.wire.messages import (
    AskBatch,
    Attempt,
    BatchReply,
    EpochOpened,
    Issued,
    JobRecord,
    LedgerRecord,
    SampleKey,
    Score,
    Scored,
    Trained,
    decode,
    encode,
    message_id,
    score_headers,
)

DEADLINE_SECONDS = 20.0


class Process:
    """A replay-buffer process, a child of this one."""

    def __init__(self, url: str, log: Path, **settings: str) -> None:
        environment = {
            **os.environ,
            "SLIPSTREAM_NATS_URL": url,
            "SLIPSTREAM_DATA_DIR": str(log.parent),
            "SLIPSTREAM_REPLAY_BUFFER_LONG_POLL_SECONDS": "0.2",
            **settings,
        }
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "services.replay_buffer"], env=environment, stdout=out, stderr=out
            )

    def send(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
        return self._process.wait(15)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def said(self, text: str) -> bool:
        return text in self.log.read_text()


class World:
    """One job on one server, seen from the scheduler, the reward service and the trainer."""

    def __init__(self, bus: Bus, job: str) -> None:
        self.bus, self.job = bus, job

    async def write(self, role: str, record: LedgerRecord) -> None:
        await self.bus.publish(topics.ledger_subject(self.job, role), encode(record))

    async def issue(self, *groups: int, version: int = 0) -> None:
        for group in groups:
            await self.write(
                "scheduler", Issued(epoch=1, group=group, row=group, row_digest="", n=2, version_step=version)
            )

    async def score(self, group: int, index: int, attempt: int = 1, oldest: int = 0) -> None:
        key, tried, score = SampleKey(self.job, group, index), Attempt(1, attempt), Score(total=1.0)
        body = encode(Scored(trajectory=b"t" * 100, score=score))
        headers = {
            "Sample": key.id,
            "Attempt": str(tried),
            "Sample-Class": "train",
            "Oldest-Step": str(oldest),
            "Tokens": "3",
            "Worker": "w",
            **score_headers(score, body),
        }
        await self.bus.publish(topics.scored_subject(key), body, message_id=message_id(key.id, tried), headers=headers)

    async def score_groups(self, *groups: int, oldest: int = 0) -> None:
        for group in groups:
            for index in (0, 1):
                await self.score(group, index, oldest=oldest)

    async def open_trainer(self, epoch: int = 1) -> None:
        await self.write("trainer", EpochOpened(epoch=epoch, role="trainer", holder="t"))

    async def train(self, first: int, last: int, oldest_kept: int) -> None:
        record = Trained(
            epoch=1, first=first, last=last, digest="", checkpoint=f"{last}.1", oldest_kept_step=oldest_kept
        )
        await self.write("trainer", record)

    async def ask(self, step: int, epoch: int = 1) -> BatchReply:
        ask = encode(AskBatch(trainer_epoch=epoch, step=step))
        return decode(BatchReply, await self.bus.request(topics.batch_subject(self.job), ask, timeout_seconds=1.5))

    async def batch(self, step: int, epoch: int = 1) -> BatchReply:
        """Ask until there is no need to wait any more, whoever has to come back first."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                try:
                    reply = await self.ask(step, epoch)
                except BusError:
                    await asyncio.sleep(0.05)
                    continue
                if reply.status != "wait":
                    return reply

    async def records(self) -> list[LedgerRecord]:
        return [record async for _, _, record in read_ledger(self.bus, self.job)]

    async def stored(self) -> list[str]:
        found = self.bus.follow(topics.scored(self.job).name, headers_only=True, live=False)
        return [message.subject.split(".", 2)[2] async for message in found]

    async def set_state(self, state: str) -> None:
        await change_job(self.bus, self.job, lambda record: msgspec.structs.replace(record, state=state))


async def until(true: Callable[[], Any], seconds: float = DEADLINE_SECONDS) -> None:
    """Wait until what `true` returns, or the coroutine that it returns gives, is true."""
    async with asyncio.timeout(seconds):
        while True:
            found = true()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.02)


@pytest.fixture(name="until")
def _until() -> Callable[..., Awaitable[None]]:
    return until


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    processes: list[Process] = []

    def begin(url: str, **settings: str) -> Process:
        processes.append(Process(url, tmp_path / f"replay-buffer-{len(processes)}.log", **settings))
        return processes[-1]

    yield begin
    for process in processes:
        process.end()


@pytest.fixture
def new_world() -> Callable[..., AbstractAsyncContextManager[World]]:
    @asynccontextmanager
    async def make(url: str, **algorithm: Any) -> AsyncIterator[World]:
        bus = await connect(url, name="test")
        try:
            world = await begin(bus, {"steps": 10, "groups_per_step": 2, "group_size": 2, "staleness": 1} | algorithm)
            yield world
            await world.set_state("completed")
        finally:
            await bus.close()

    async def begin(bus: Bus, algorithm: dict[str, Any]) -> World:
        await bus.declare(topics.SHARED_STREAMS, topics.BUCKETS)
        spec = JobSpec.model_validate(
            {
                "name": "sums",
                "model": "tiny",
                "data": {"reasoning_gym": "chain_sum"},
                "reward": [{"name": "right", "kind": "reasoning_gym"}],
                "algorithm": algorithm,
            }
        )
        job = f"sums-{secrets.token_hex(3)}"
        await bus.declare(topics.job_streams(job))
        now = time.time()
        await create_job(
            bus,
            JobRecord(
                id=job,
                name="sums",
                spec=spec.model_dump(mode="json"),
                digest="",
                state="running",
                created_at=now,
                updated_at=now,
            ),
        )
        world = World(bus, job)
        await world.open_trainer()
        return world

    return make
