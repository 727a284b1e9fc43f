"""A real server, real scheduler processes, and what the other services do around them, in a few lines each."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from shared.job.spec import JobSpec
from shared.wire import topics
from shared.wire.bus import BusError, NotFound, Stored, connect
from shared.wire.bus.api import Bus
from shared.wire.jobs import change_job, create_job, get_job
from shared.wire.ledger import Ledger, read_ledger
from shared.wire.messages import (
    AskLeases,
    Attempt,
    Batched,
    BatchedSample,
    Dead,
    Dropped,
    Ended,
    Event,
    GaveUp,
    GrantLeases,
    Held,
    Issued,
    JobRecord,
    Lease,
    LedgerRecord,
    Retired,
    SampleKey,
    Score,
    Scored,
    Segment,
    Span,
    Trained,
    Trajectory,
    Version,
    Weights,
    body_headers,
    decode,
    encode,
    message_id,
    score_headers,
)

DEADLINE_SECONDS = 30.0


async def until(true: Callable[[], Any], seconds: float = DEADLINE_SECONDS) -> None:
    """Wait until what `true` returns, or the coroutine that it returns gives, is true."""
    async with asyncio.timeout(seconds):
        while True:
            found = true()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.02)


class Process:
    """A scheduler process, a child of this one."""

    def __init__(self, url: str, data_dir: Path, log: Path, **settings: str) -> None:
        environment = {
            **os.environ,
            "SLIPSTREAM_NATS_URL": url,
            "SLIPSTREAM_DATA_DIR": str(data_dir),
            "SLIPSTREAM_SCHEDULER_SILENT_SECONDS": "1.5",
            **settings,
        }
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "services.scheduler"], env=environment, stdout=out, stderr=out
            )

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(15)

    def said(self, text: str) -> bool:
        return text in self.log.read_text()


class Worker:
    """A rollout worker without an engine. `speed`: asks between a lease and its end; None: it never ends."""

    def __init__(self, world: World, name: str, slots: int = 4, speed: int | None = 0) -> None:
        self.world, self.name, self.slots, self.speed = world, name, slots, speed
        self.version = ""
        self.held: dict[str, Lease] = {}
        self.age: dict[str, int] = {}
        self.ended: list[Ended] = []
        self.leases: list[Lease] = []
        self.versions: dict[str, str] = {}  # at the time of the lease, by attempt
        self.fails: Callable[[Lease], str] = lambda lease: ""
        self.forgets = False  # publishes, and dies before it says so
        self.revoked: list[Held] = []
        self.pins: list[str] = []
        self.tokens: Callable[[str], int] = lambda id: self.age.get(id, 0)

    async def run(self) -> None:
        while True:
            with contextlib.suppress(BusError):
                await self.ask()
            await asyncio.sleep(0.02)

    async def ask(self, **changes: Any) -> GrantLeases:
        self.age = {id: self.age.get(id, -1) + 1 for id in self.held}
        for id in [id for id, age in self.age.items() if self.speed is not None and age >= self.speed]:
            await self.finish(id)
        ask = AskLeases(
            worker=self.name,
            job=self.world.job,
            version=self.version,
            slots=self.slots,
            free_slots=self.slots - len(self.held),
            held=[
                Held(sample=lease.sample, attempt=lease.attempt, tokens=self.tokens(id))
                for id, lease in self.held.items()
            ],
            ended=self.ended,
        )
        ask = msgspec.structs.replace(ask, **changes)
        data = await self.world.bus.request(topics.lease_subject(self.world.job), encode(ask), timeout_seconds=2.0)
        reply = decode(GrantLeases, data)
        self.ended = []
        self.revoked += reply.revoked
        for held in reply.revoked:
            self.held.pop(message_id(held.sample, held.attempt), None)
        for lease in reply.leases:
            id = message_id(lease.sample, lease.attempt)
            assert id not in self.versions, "an attempt was used twice"
            self.held[id] = lease
            self.leases.append(lease)
            self.versions[id] = self.version
        holds_evaluation = any(lease.sample_class == "eval" for lease in self.held.values())
        if reply.pin_version:
            self.pins.append(reply.pin_version)
        if not holds_evaluation:
            self.version = reply.pin_version or str(self.world.announced or "")
        return reply

    async def finish(self, id: str) -> None:
        lease = self.held.pop(id)
        error = self.fails(lease)
        if not error:
            await self.world.publish(lease, self.name, self.version)
        if not self.forgets:
            self.ended.append(Ended(sample=lease.sample, attempt=lease.attempt, error=error))


class World:
    """One job on one server, seen from everyone but the scheduler."""

    def __init__(self, bus: Bus, spec: JobSpec, job: str) -> None:
        self.bus, self.spec, self.job = bus, spec, job
        self.announced: Version | None = None
        self.trains = True
        self.solves: Callable[[Trajectory], bool] = lambda trajectory: True

    # --- rollout ----------------------------------------------------------------------------------------------------

    async def publish(self, lease: Lease, worker: str, version: str) -> None:
        answer = Segment(
            role="assistant",
            token_ids=np.arange(3, dtype="<i4").tobytes(),
            mask=b"\1\1\1",
            spans=[Span(0, 3, version)],
        )
        made = Trajectory(
            sample=lease.sample,
            attempt=lease.attempt,
            sample_class=lease.sample_class,
            segments=[*lease.prefix, answer],
            sampling=lease.sampling,
            finish_reason="stop",
            worker=worker,
            started_at=0.0,
            finished_at=1.0,
            digests=lease.digests,
            row=lease.row,
        )
        await self.bus.publish(
            topics.trajectory_subject(made.key),
            encode(made),
            message_id=message_id(made.sample, made.attempt),
            headers=body_headers(made),
        )

    # --- reward -----------------------------------------------------------------------------------------------------

    async def reward(self) -> None:
        async def on_trajectory(stored: Stored) -> None:
            made = decode(Trajectory, stored.data)
            solved = float(self.solves(made))
            score = Score(components={"exact": solved}, weights={"exact": 1.0}, total=solved)
            body = encode(Scored(trajectory=stored.data, score=score))
            await self.bus.publish(
                topics.scored_subject(made.key),
                body,
                message_id=message_id(made.sample, made.attempt),
                headers={**body_headers(made), **score_headers(score, body)},
            )

        while True:
            try:
                await self.bus.consume(topics.trajectories(self.job).name, topics.REWARD_CONSUMER, on_trajectory)
            except NotFound:
                await asyncio.sleep(0.05)

    # --- replay-buffer, trainer, weight-broadcast ---------------------------------------------------------------------

    async def learn(self) -> None:
        """Batches as soon as B groups are complete, trains at once, a checkpoint a step; drops what is left over."""
        groups: dict[int, Issued] = {}
        given_up: dict[int, list[GaveUp]] = {}
        ending: list[int] = [self.spec.algorithm.steps]

        def apply(_: int, record: LedgerRecord) -> None:
            match record:
                case Issued():
                    groups[record.group] = record
                case GaveUp():
                    given_up.setdefault(SampleKey.parse(record.sample).group, []).append(record)
                case Batched() | Dropped():
                    for sample in record.samples:
                        id = sample if isinstance(sample, str) else sample.sample
                        groups.pop(SampleKey.parse(id).group, None)
            if record.__struct_config__.tag == "ending":
                ending[0] = record.last_step

        buffer = Ledger(self.bus, self.job, "replay-buffer", "test", apply)
        trainer = Ledger(self.bus, self.job, "trainer", "test", lambda *_: None)
        await self._stream_exists()
        await buffer.open()
        await trainer.open()
        await self.announce(Version(0, 1))
        done: dict[SampleKey, Stored] = {}
        scored = topics.scored(self.job).name
        step, read = 0, 0
        while True:
            async for stored in self.bus.follow(
                scored, subject=topics.scored_train_filter(self.job), from_sequence=read + 1, live=False
            ):
                _, _, group, index = stored.subject.split(".")
                done.setdefault(SampleKey(self.job, int(group), int(index)), stored)
                read = stored.sequence
            await buffer.append(lambda: None)
            for group, lost in list(given_up.items()):
                n = given_up.pop(group) and groups[group].n
                dead = [record.sample for record in lost]
                rest = [k.id for i in range(n) if (k := SampleKey(self.job, group, i)).id not in dead]
                await buffer.append(lambda d=dead, e=lost: Dead(epoch=0, samples=d, errors=[x.error for x in e]))
                await buffer.append(lambda r=rest: Dropped(epoch=0, samples=r, reason="sibling dead"))
            complete = [
                g for g, issued in sorted(groups.items())
                if all(SampleKey(self.job, g, i) in done for i in range(issued.n))
            ]  # fmt: skip
            record = await get_job(self.bus, self.job)
            over = step >= ending[0] or (record is not None and record.state == "cancelling")
            if over and groups:
                ids = [SampleKey(self.job, g, i).id for g, issued in groups.items() for i in range(issued.n)]
                await buffer.append(lambda ids=ids: Dropped(epoch=0, samples=ids, reason="job ended"))
            elif not over and self.trains and len(complete) >= self.spec.algorithm.groups_per_step:
                step += 1
                samples = [
                    BatchedSample(sample=k.id, attempt=Attempt(1, 1), sequence=done[k].sequence, digest="", reward=1.0)
                    for g in complete[: self.spec.algorithm.groups_per_step]
                    for k in [SampleKey(self.job, g, i) for i in range(groups[g].n)]
                ]
                await buffer.append(lambda s=step, b=samples: Batched(epoch=0, step=s, trainer_epoch=1, samples=b))
                await trainer.append(
                    lambda s=step: Trained(epoch=0, first=s, last=s, digest="", checkpoint=f"{s}.1", oldest_kept_step=0)
                )
                await buffer.append(lambda s=step: Retired(epoch=0, first=s, last=s))
                await self.announce(Version(step, 1))
            await asyncio.sleep(0.02)

    async def announce(self, version: Version) -> None:
        kept = [Version(step, 1) for step in range(max(0, version.step - 3), version.step)]
        weights = Weights(
            job=self.job, version=version, files=[], host="h", local_path="", urls=[], kept=[*kept, version]
        )
        await self.bus.publish(topics.weights_subject(self.job), encode(weights))
        self.announced = version

    async def _stream_exists(self) -> None:
        async def there() -> bool:
            return {s.name for s in topics.job_streams(self.job)} <= set(await self.bus.stream_names())

        await until(there)

    # --- what is seen -----------------------------------------------------------------------------------------------

    async def records(self, kind: type = object) -> list[Any]:
        try:
            return [record async for _, _, record in read_ledger(self.bus, self.job) if isinstance(record, kind)]
        except NotFound:
            return []

    async def events(self, kind: str) -> list[Event]:
        found = self.bus.follow(topics.EVENTS.name, subject=topics.event_subject(self.job, kind), live=False)
        return [decode(Event, stored.data) async for stored in found]

    async def state(self) -> str:
        record = await get_job(self.bus, self.job)
        return "" if record is None else record.state

    async def reason(self) -> str:
        record = await get_job(self.bus, self.job)
        return "" if record is None else record.reason

    async def set_state(self, state: str) -> None:
        await change_job(self.bus, self.job, lambda record: msgspec.structs.replace(record, state=state))

    async def comes_to(self, state: str, seconds: float = DEADLINE_SECONDS) -> None:
        async def there() -> bool:
            found = await self.state()
            assert found == state or found not in ("failed", "completed", "cancelled"), await self.reason()
            return found == state

        await until(there, seconds)

    def worker(self, name: str, **rest: Any) -> Worker:
        return Worker(self, name, **rest)


@asynccontextmanager
async def around(*loops: Awaitable[None]) -> AsyncIterator[None]:
    """Run loops beside the test; one that fails, fails the test."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(loop) for loop in loops]
        yield
        for task in running:
            task.cancel()


@pytest.fixture
def beside() -> Callable[..., Any]:
    return around


@pytest.fixture(name="until")
def _until() -> Callable[..., Awaitable[None]]:
    return until


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scheduler-data")


@pytest.fixture
def start(tmp_path: Path, data_dir: Path) -> Iterator[Callable[..., Process]]:
    processes: list[Process] = []

    def begin(url: str, **settings: str) -> Process:
        log = tmp_path / f"scheduler-{len(processes)}.log"
        processes.append(Process(url, data_dir, log, **settings))
        return processes[-1]

    yield begin
    for process in processes:
        process.end()
        sys.stdout.write(f"--- {process.log.name}\n{process.log.read_text()}")


@pytest.fixture
def new_world() -> Callable[..., Any]:
    """A job of one-digit sums on the tiny model."""

    @asynccontextmanager
    async def make(url: str, **sections: Any) -> AsyncIterator[World]:
        bus = await connect(url, name="test")
        await bus.declare(topics.SHARED_STREAMS, topics.BUCKETS)
        plain = {
            "name": "sums",
            "model": "tiny",
            "data": {"reasoning_gym": "chain_sum", "settings": {"max_digits": 1, "min_digits": 1}, "size": 200},
            "reward": [{"name": "exact", "kind": "exact"}],
            **sections,
        }
        plain["algorithm"] = {
            "steps": 3, "groups_per_step": 2, "group_size": 2, "staleness": 1, **sections.get("algorithm", {}),
        }  # fmt: skip
        spec = JobSpec.model_validate(plain)
        world = World(bus, spec, f"sums-{secrets.token_hex(3)}")
        await world_job(world)
        try:
            yield world
        finally:
            await bus.close()

    return make


async def world_job(world: World) -> None:
    now = time.time()
    record = JobRecord(
        id=world.job,
        name=world.spec.name,
        spec=world.spec.model_dump(mode="json"),
        digest=world.spec.digest,
        state="running",
        created_at=now,
        updated_at=now,
    )
    await create_job(world.bus, record)
