"""A real server, real weight-broadcast processes, and what trainer and workers do around them."""

from __future__ import annotations

import asyncio
import hashlib
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

from shared.wire import topics
from shared.wire.bus import connect
from shared.wire.bus.api import Bus
from shared.wire.jobs import change_job, create_job, delete_job
from shared.wire.messages import (
    Event,
    FileEntry,
    JobRecord,
    Presence,
    Snapshot,
    Version,
    Weights,
    decode,
    encode,
)

DEADLINE_SECONDS = 20.0


class Process:
    """A weight-broadcast process, a child of this one."""

    def __init__(self, url: str, log: Path, **settings: str) -> None:
        environment = {**os.environ, "SLIPSTREAM_NATS_URL": url, **settings}
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "services.weight_broadcast"], env=environment, stdout=out, stderr=out
            )

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(15)

    def wait(self) -> int:
        return self._process.wait(15)

    def said(self, text: str) -> bool:
        return text in self.log.read_text()


class World:
    """One job on one server and one data folder."""

    def __init__(self, bus: Bus, job: str, data: Path) -> None:
        self.bus, self.job, self.data = bus, job, data

    async def snapshot(self, step: int, epoch: int = 1, size: int = 30_000, harm: bool = False) -> Snapshot:
        """Write a folder as the trainer does, and announce it."""
        version = Version(step, epoch)
        folder = self.data / "snapshots" / self.job / str(version)
        folder.mkdir(parents=True)
        contents = {"config.json": b"{}", "model.safetensors": os.urandom(size)}
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        files = [
            FileEntry(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
            for name, content in contents.items()
        ]
        if harm:
            (folder / "model.safetensors").write_bytes(os.urandom(size))
        snapshot = Snapshot(job=self.job, version=version, path=f"snapshots/{self.job}/{version}", files=files)
        await self.bus.publish(topics.snapshot_subject(self.job), encode(snapshot))
        return snapshot

    async def announced(self) -> Weights | None:
        stored = await self.bus.get(topics.WEIGHTS.name, subject=topics.weights_subject(self.job))
        return None if stored is None else decode(Weights, stored.data)

    async def until_announced(self, step: int, epoch: int = 1) -> Weights:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                weights = await self.announced()
                if weights is not None and weights.version == Version(step, epoch):
                    return weights
                await asyncio.sleep(0.01)

    async def hold(self, *versions: str) -> None:
        """Say, as a worker does every two seconds, which versions are needed."""
        presence = Presence(
            service="rollout", id="r", host="h", pid=1, started_at=0.0, detail={"versions": {self.job: list(versions)}}
        )
        await self.bus.broadcast(topics.presence_subject("rollout", "r"), encode(presence))

    async def notices(self) -> list[str]:
        found = self.bus.follow(topics.EVENTS.name, subject=topics.event_subject(self.job, "notice"), live=False)
        return [decode(Event, stored.data).body["text"] async for stored in found]

    async def set_state(self, state: str) -> None:
        await change_job(self.bus, self.job, lambda record: msgspec.structs.replace(record, state=state))

    async def delete(self) -> None:
        await delete_job(self.bus, self.job)


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
        common = {
            "SLIPSTREAM_DATA_DIR": str(tmp_path / "data"),
            "SLIPSTREAM_WEIGHT_BROADCAST_SHARED_DIR": str(tmp_path / "shared"),
            "SLIPSTREAM_WEIGHT_BROADCAST_HOLD_SECONDS": "0.5",
        }
        log = tmp_path / f"weight-broadcast-{len(processes)}.log"
        processes.append(Process(url, log, **(common | settings)))
        return processes[-1]

    yield begin
    for process in processes:
        process.end()


@pytest.fixture
def new_world(tmp_path: Path) -> Callable[[str], AbstractAsyncContextManager[World]]:
    @asynccontextmanager
    async def make(url: str) -> AsyncIterator[World]:
        bus = await connect(url, name="test")
        try:
            await bus.declare(topics.SHARED_STREAMS, topics.BUCKETS)
            job, now = f"sums-{secrets.token_hex(3)}", time.time()
            await bus.declare(topics.job_streams(job))
            record = JobRecord(id=job, name="sums", spec={}, digest="", state="running", created_at=now, updated_at=now)
            await create_job(bus, record)
            yield World(bus, job, tmp_path / "data")
        finally:
            await bus.close()

    return make
