"""A real trainer process beside a replay buffer that is played by the test: recorded batches, and answers to asks."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.job.spec import JobSpec
from shared.wire.bus import Bus, connect
from shared.wire.jobs import change_job, create_job, get_job
from shared.wire.ledger import Ledger
from shared.wire.messages import (
    AskBatch,
    Attempt,
    Batched,
    BatchedSample,
    BatchReply,
    Digests,
    Event,
    JobRecord,
    Sampling,
    Score,
    Scored,
    Segment,
    Snapshot,
    Span,
    Trained,
    Trajectory,
    decode,
    digest,
    encode,
)
from shared.wire.topics import (
    BUCKETS,
    SHARED_STREAMS,
    SNAPSHOTS,
    SampleKey,
    batch_subject,
    job_streams,
    scored_subject,
    snapshot_subject,
)

DEADLINE_SECONDS = 120.0


async def until(condition: Callable[[], Awaitable[Any]], what: str, seconds: float = DEADLINE_SECONDS) -> Any:
    """What `condition` gives once it is true of something; fails with `what` at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        value = await condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds:g} s for: {what}"
        await asyncio.sleep(0.05)


def job_spec(**algorithm: Any) -> dict[str, Any]:
    """The tiny model in two groups of four, a checkpoint every second step."""
    checkpoint = algorithm.pop("checkpoint", {"every": 2})
    return JobSpec.model_validate(
        {
            "name": "lesson",
            "model": algorithm.pop("model", "tiny"),
            "data": {"reasoning_gym": "spell_backward"},
            "reward": [{"name": "exact", "kind": "exact"}],
            "algorithm": {
                "steps": 5, "group_size": 4, "groups_per_step": 2, "learning_rate": 1e-3, "precision": "float32",
            } | algorithm,
            "checkpoint": checkpoint,
            "engine": {"dtype": "float32"},
        }
    ).model_dump(mode="json")  # fmt: skip


class World:
    """A job's streams, a buffer that hands over what the test recorded, and what the trainer wrote."""

    def __init__(self, bus: Bus, job: str, spec: dict[str, Any], data_dir: Path) -> None:
        self.bus, self.job, self.spec, self.data_dir = bus, job, spec, data_dir
        self.trained: list[Trained] = []
        self.batched: dict[int, Batched] = {}
        self.asked: list[AskBatch] = []
        self.ready = 0  # batches are handed over up to this step
        self.ledger = Ledger(bus, job, "replay-buffer", "test", self._apply)

    def _apply(self, sequence: int, record: Any) -> None:
        if isinstance(record, Trained):
            self.trained.append(record)
        if isinstance(record, Batched):
            self.batched[record.step] = record

    async def begin(self) -> None:
        await self.bus.declare([*SHARED_STREAMS, *job_streams(self.job)], BUCKETS)
        await create_job(
            self.bus,
            JobRecord(
                id=self.job, name="lesson", spec=self.spec, digest="0" * 64, state="running",
                created_at=time.time(), updated_at=time.time(),
            ),
        )  # fmt: skip
        await self.ledger.open()

    async def serve(self) -> Callable[[], Awaitable[None]]:
        """Answer the trainer as a replay buffer does; returns what stops it."""
        return await self.bus.serve(batch_subject(self.job), self._answer)

    async def _answer(self, data: bytes) -> bytes:
        ask = decode(AskBatch, data)
        self.asked.append(ask)
        if ask.step > self.ready:
            return encode(BatchReply(status="wait"))
        return encode(BatchReply(status="ready", sequence=await self.record(ask.step, ask.trainer_epoch)))

    async def record(self, step: int, trainer_epoch: int = 1, **changes: Any) -> int:
        """Store the samples of a step and write its batch; its sequence in the ledger."""
        algorithm = self.spec["algorithm"]
        samples = []
        for group in range((step - 1) * algorithm["groups_per_step"], step * algorithm["groups_per_step"]):
            for index in range(algorithm["group_size"] if algorithm["kind"] == "grpo" else 1):
                samples.append(await self.store(SampleKey(self.job, group, index), step, **changes))
        record = Batched(epoch=0, step=step, trainer_epoch=trainer_epoch, samples=samples)
        sequence = await self.ledger.append(lambda: None if step in self.batched else record)
        return sequence or self.ledger.sequence

    async def store(self, key: SampleKey, step: int, valid: bool = True) -> BatchedSample:
        """One scored sample: a random answer of random length, right every other time."""
        draw = np.random.default_rng([key.group, key.index])
        prompt, answer = 3 + draw.integers(0, 200, 6), 3 + draw.integers(0, 200, 2 + key.index)
        reward = float((key.group + key.index) % 2)
        nothing = np.full(len(prompt), np.nan, dtype="<f4")
        drawn = (-4.0 - draw.random(len(answer))).astype("<f4")
        trajectory = Trajectory(
            sample=key.id,
            attempt=Attempt(1, key.group * 100 + key.index),
            segments=[
                Segment(
                    role="prompt",
                    token_ids=prompt.astype("<i4").tobytes(),
                    mask=bytes(len(prompt)),
                    columns={"raw": nothing.tobytes()},
                ),
                Segment(
                    role="assistant",
                    token_ids=answer.astype("<i4").tobytes(),
                    mask=b"\x01" * len(answer),
                    columns={"raw": drawn.tobytes(), "behaviour": drawn.tobytes()},
                    spans=[Span(start=0, end=len(answer), version=f"{step - 1}.1")],
                ),
            ],
            sampling=Sampling(),
            finish_reason="stop",
            worker="test",
            started_at=0.0,
            finished_at=0.0,
            digests=Digests(),
        )
        score = Score(components={"exact": reward}, weights={"exact": 1.0}, total=reward, valid=valid)
        body = encode(Scored(trajectory=encode(trajectory), score=score))
        ack = await self.bus.publish(scored_subject(key), body, message_id=key.id)
        return BatchedSample(
            sample=key.id, attempt=trajectory.attempt, sequence=ack.sequence, digest=digest(body), reward=reward
        )

    async def trained_to(self, step: int) -> None:
        async def there() -> bool:
            await self.ledger.append(lambda: None)
            return any(record.last >= step for record in self.trained)

        await until(there, f"step {step} trained and recorded")

    async def announced(self) -> Snapshot | None:
        stored = await self.bus.get(SNAPSHOTS.name, subject=snapshot_subject(self.job))
        return None if stored is None else decode(Snapshot, stored.data)

    async def announced_step(self, step: int) -> Snapshot:
        async def there() -> Snapshot | None:
            newest = await self.announced()
            return newest if newest is not None and newest.version.step >= step else None

        return await until(there, f"version {step} announced")

    async def events(self, kind: str) -> list[Event]:
        found = []
        async for stored in self.bus.follow("events", subject=f"events.{self.job}.{kind}", live=False):
            found.append(decode(Event, stored.data))
        return found

    async def state(self) -> JobRecord:
        record = await get_job(self.bus, self.job)
        assert record is not None
        return record

    async def set_state(self, state: str) -> None:
        import msgspec

        await change_job(self.bus, self.job, lambda r: msgspec.structs.replace(r, state=state, reason=""))

    def checkpoints(self) -> list[str]:
        root = self.data_dir / "checkpoints" / self.job
        return sorted(p.name for p in root.iterdir()) if root.is_dir() else []


class Trainer:
    """A trainer service that ends with the test."""

    def __init__(self, url: str, data_dir: Path, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "services.trainer"],
            env={
                **os.environ,
                "SLIPSTREAM_NATS_URL": url,
                "SLIPSTREAM_DATA_DIR": str(data_dir),
                "OMP_NUM_THREADS": "1",
                "OMP_WAIT_POLICY": "PASSIVE",
                **environment,
            },
            preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL),
        )

    def children(self, job: str = "") -> list[int]:
        """The processes that train, or the one that trains `job`."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
                command = (path / "cmdline").read_text()
            except OSError:
                continue
            if int(parent) == self.process.pid and state != "Z" and job in command:
                found.append(int(path.name))
        return found

    def kill_child(self, job: str) -> int:
        """SIGKILL to the process that trains the job; its id."""
        (child,) = self.children(job)
        os.kill(child, signal.SIGKILL)
        return child

    def stop(self, seconds: float = 10.0) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(seconds)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start_trainer(tmp_path: Path):
    started: list[Trainer] = []

    def start(url: str, **environment: str) -> Trainer:
        started.append(Trainer(url, tmp_path / "data", **environment))
        return started[-1]

    yield start
    for trainer in started:
        trainer.kill()


@pytest.fixture
def world(nats_url: str, tmp_path: Path):
    """`async with world(name, spec) as w`: a job with its streams, and a buffer that answers."""

    @asynccontextmanager
    async def make(name: str, spec: dict[str, Any], answering: bool = True) -> AsyncIterator[World]:
        bus = await connect(nats_url, name="test")
        made = World(bus, f"{name}-{os.getpid():x}-{time.monotonic_ns() % 10**9:x}", spec, tmp_path / "data")
        await made.begin()
        stop = await made.serve() if answering else None
        try:
            yield made
        finally:
            await made.set_state("cancelled")
            if stop is not None:
                await stop()
            await bus.close()

    return make


@pytest.fixture(scope="session")
def wait_until():
    return until


@pytest.fixture(scope="session")
def make_spec():
    return job_spec
