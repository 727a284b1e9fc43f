"""A real nats-server, the real rollout process with the built-in engine, a tiny model, and a played scheduler."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from shared.job.spec import JobSpec
from shared.policy.resolve import resolve_model
from shared.wire import topics
from shared.wire.bus import connect
from shared.wire.bus.api import Bus
from shared.wire.jobs import create_job
from shared.wire.messages import (
    AskLeases,
    Attempt,
    Digests,
    Ended,
    FileEntry,
    GrantLeases,
    Held,
    JobRecord,
    Lease,
    SampleKey,
    Sampling,
    Segment,
    Trajectory,
    Version,
    Weights,
    decode,
    encode,
)

PROMPT = [1, *(3 + byte for byte in b"spell: cat\n")]


class Rollouts:
    """Starts rollout processes, and ends them by pid."""

    def __init__(self, nats_url: str, folder: Path) -> None:
        self.folder = folder
        self._env = {
            **os.environ, "SLIPSTREAM_NATS_URL": nats_url, "SLIPSTREAM_DATA_DIR": str(folder / "data"),
            "SLIPSTREAM_ROLLOUT_SLOTS": "4", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
            "SLIPSTREAM_LOG_LEVEL": "debug",
        }  # fmt: skip
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, **settings: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "services.rollout"], env=self._env | settings, stderr=log)
        self._running.append(process)
        return process

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def engines(self, process: subprocess.Popen[bytes]) -> list[psutil.Process]:
        children = psutil.Process(process.pid).children(recursive=True)
        return [child for child in children if "engine" in child.cmdline()]

    def stop(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(10)


class PlayedScheduler:
    """Answers `lease.<job>` as a scheduler would, by plain lists that the test fills and reads."""

    def __init__(self, bus: Bus, job: str) -> None:
        self.bus, self.job = bus, job
        self.asks: list[AskLeases] = []
        self.ended: dict[str, Ended] = {}
        self.queue: list[Lease] = []
        self.leased: dict[str, Lease] = {}
        self.revoked: list[Held] = []
        self.terms = GrantLeases(scheduler_epoch=1, engine_dtype="float32", ask_again_seconds=0.05)
        self.only_to_version = ""
        self.silent = False
        self._counter = itertools.count(1)

    def offer(
        self, count: int, *, group: int = 0, sample_class: str = "train", max_tokens: int = 8, eval_round: Any = None,
        **sampling: Any,
    ) -> list[str]:  # fmt: skip
        ids = np.array(PROMPT, "<i4")
        made = []
        for index in range(count):
            key = SampleKey(self.job, group, index, eval_round)
            self.queue.append(
                Lease(
                    sample=key.id,
                    attempt=Attempt(1, next(self._counter)),
                    sample_class=sample_class,
                    prefix=[Segment(role="user", token_ids=ids.tobytes(), mask=bytes(len(ids)))],
                    sampling=Sampling(max_tokens=max_tokens, seed=group * 1000 + index, **sampling),
                    deadline_seconds=60.0,
                    digests=Digests(job="d"),
                    row={"answer": "tac"},
                )
            )
            made.append(key.id)
        return made

    async def on_ask(self, data: bytes) -> bytes:
        ask = decode(AskLeases, data)
        if self.silent:
            await asyncio.sleep(3600)
        self.asks.append(ask)
        for ended in ask.ended:
            self.ended[ended.sample] = ended
            self.leased.pop(ended.sample, None)
        granted: list[Lease] = []
        if not ask.draining and (not self.only_to_version or ask.version == self.only_to_version):
            granted, self.queue = self.queue[: ask.free_slots], self.queue[ask.free_slots :]
        self.leased.update({lease.sample: lease for lease in granted})
        revoked, self.revoked = self.revoked, []
        return encode(msgspec.structs.replace(self.terms, leases=granted, revoked=revoked, waiting=len(self.queue)))

    async def announce(
        self, folder: Path, model: str, version: Version, data_dir: Path, *, flip: bool = False,
        empty_weights: bool = False,
    ) -> Path:  # fmt: skip
        """Put `model` as `version` and announce it, as trainer and weight-broadcast would. `flip`: with one byte that
        is not as announced; `empty_weights`: with a weights file that nothing can load."""
        place = folder / "snapshots" / self.job / str(version)
        place.mkdir(parents=True, exist_ok=True)
        entries = []
        for path in sorted(resolve_model(model, data_dir).path.iterdir()):
            if path.is_file():
                content = b"" if empty_weights and path.suffix == ".safetensors" else path.read_bytes()
                turned = content[:-1] + bytes([content[-1] ^ 1]) if flip and content else content
                (place / path.name).write_bytes(turned)
                entries.append(FileEntry(name=path.name, size=len(content), sha256=hashlib.sha256(content).hexdigest()))
        (place.parent / f"{version}.json").write_bytes(msgspec.json.encode(entries))
        announced = Weights(
            job=self.job, version=version, files=entries, host=socket.gethostname(), local_path=str(place), urls=[],
            kept=[version],
        )  # fmt: skip
        await self.bus.publish(topics.weights_subject(self.job), encode(announced))
        return place

    async def trajectories(self) -> dict[str, Trajectory]:
        """Every stored trajectory by its sample; of two copies the first."""
        found: dict[str, Trajectory] = {}
        async for stored in self.bus.follow(topics.trajectories(self.job).name, live=False):
            made = decode(Trajectory, stored.data)
            found.setdefault(made.sample, made)
        return found


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder where the tiny models are made once."""
    folder = tmp_path_factory.mktemp("models")
    resolve_model("tiny", folder)
    resolve_model("tiny-qwen2", folder)
    return folder


@pytest.fixture
def rollouts(nats_server: Callable[[], Any], tmp_path: Path) -> Iterator[tuple[Rollouts, Any]]:
    server = nats_server()
    started = Rollouts(server.url, tmp_path)
    yield started, server
    started.stop()


@pytest.fixture
def played(tmp_path: Path, models: Path) -> Callable[..., Any]:
    """`async with played(url, "tiny", ...) as (scheduler, ...)`: running jobs, version 0.1 announced for each."""

    @asynccontextmanager
    async def play(url: str, *of: str) -> AsyncIterator[list[PlayedScheduler]]:
        bus = await connect(url, name="test")
        try:
            await bus.declare(topics.SHARED_STREAMS, topics.BUCKETS)
            made = []
            for number, model in enumerate(of):
                spec = JobSpec.model_validate(
                    {"name": "job", "model": model, "data": {"jsonl": "x"}, "reward": [{"name": "r", "kind": "exact"}]}
                )
                scheduler = PlayedScheduler(bus, f"job-{number}")
                await bus.declare(topics.job_streams(scheduler.job))
                await bus.serve(topics.lease_subject(scheduler.job), scheduler.on_ask)
                await scheduler.announce(tmp_path, model, Version(0, 1), models)
                now = time.time()
                record = JobRecord(
                    id=scheduler.job, name="job", spec=spec.model_dump(mode="json"), digest="", state="running",
                    created_at=now, updated_at=now,
                )  # fmt: skip
                await create_job(bus, record)
                made.append(scheduler)
            yield made
        finally:
            await bus.close()

    return play


@pytest.fixture
def eventually() -> Callable[..., Awaitable[None]]:
    async def wait(condition: Callable[[], Any], seconds: float = 40.0) -> None:
        deadline = time.monotonic() + seconds
        while True:
            held = condition()
            if await held if asyncio.iscoroutine(held) else held:
                return
            assert time.monotonic() < deadline, "the condition never held"
            await asyncio.sleep(0.02)

    return wait
