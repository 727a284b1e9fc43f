"""One job's versions over a bus: what is announced, refused, kept and removed."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.weight_broadcast.file_thread import FileThread
from services.weight_broadcast.holds import Holds
from services.weight_broadcast.job_weights import JobWeights
from services.weight_broadcast.store import Store
from shared.wire import topics
from shared.wire.bus.memory import MemoryBus
from shared.wire.messages import Presence, Snapshot, Trained, Version, Weights, decode, encode

JOB = "sums-1a2b3c"
V = Version
Write = Callable[..., Snapshot]


class World:
    """The trainer's and the workers' side, and the folder that all share."""

    def __init__(self, folder: Path) -> None:
        self.bus = MemoryBus()
        self.folder = folder
        self.holds = Holds(seconds=10)
        self.notices: list[str] = []

    async def snapshot(self, snapshot: Snapshot) -> None:
        await self.bus.publish(topics.snapshot_subject(JOB), encode(snapshot))

    async def trained(self, last: int) -> None:
        record = Trained(epoch=1, first=1, last=last, digest="", checkpoint="", oldest_kept_step=0)
        await self.bus.publish(topics.ledger_subject(JOB, "trainer"), encode(record))

    async def announced(self) -> Weights | None:
        stored = await self.bus.get(topics.WEIGHTS.name, subject=topics.weights_subject(JOB))
        return None if stored is None else decode(Weights, stored.data)

    def hold(self, *versions: str) -> None:
        detail = {"versions": {JOB: list(versions)}}
        presence = Presence(service="rollout", id="r", host="h", pid=1, started_at=0.0, detail=detail)
        self.holds.hear(presence, time.monotonic())

    async def notice(self, level: str, text: str) -> None:
        self.notices.append(text)

    def folders(self) -> set[str]:
        """Every version folder on the disk, copies included."""
        return {path.name for path in self.folder.rglob("*") if path.is_dir() and "." in path.name}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@asynccontextmanager
async def serving(world: World, url: str = "http://here:1", shared: bool = True) -> AsyncIterator[JobWeights]:
    await world.bus.declare((topics.SNAPSHOTS, topics.WEIGHTS, *topics.job_streams(JOB)))
    files = FileThread()
    store = Store(world.folder / "data", world.folder / "shared" if shared else None)
    weights = JobWeights(
        world.bus.another(),
        JOB,
        store,
        world.holds,
        host="h/1",
        url=url,
        files=files,
        notice=world.notice,
        learned_by=0.0,
    )
    task = asyncio.create_task(weights.run())
    try:
        yield weights
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        files.close()


async def until(true: Callable[[], Any], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            found = true()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.002)


async def until_announced(world: World, version: Version) -> Weights:
    async def there() -> bool:
        found = await world.announced()
        return found is not None and found.version == version

    await until(there)
    found = await world.announced()
    assert found is not None
    return found


async def test_a_snapshot_is_announced_with_its_files_and_where_they_are(world: World, write_snapshot: Write) -> None:
    async with serving(world):
        snapshot = write_snapshot(0)
        await world.snapshot(snapshot)
        weights = await until_announced(world, V(0, 1))
    assert weights.files == snapshot.files
    assert (Path(weights.local_path) / "model.safetensors").read_bytes() == b"0.1" * 3000
    assert weights.urls == [f"http://here:1/{JOB}/0.1"]
    assert (weights.kept, weights.durable_step, weights.host) == ([V(0, 1)], -1, "h/1")


async def test_over_a_hundred_versions_the_disk_stays_flat_and_what_is_held_stays(
    world: World, write_snapshot: Write
) -> None:
    most = 0
    async with serving(world) as weights:
        for step in range(120):
            if step == 10:
                world.hold("10.1", "11.1")
            await world.snapshot(write_snapshot(step, size=100))
            await until_announced(world, V(step, 1))
            await until(lambda: len(weights.present) <= 4)
            most = max(most, len(world.folders()))
        await until(lambda: world.folders() == {"10.1", "11.1", "118.1", "119.1"})
        assert (await world.announced()).kept == [V(10, 1), V(11, 1), V(118, 1), V(119, 1)]  # type: ignore[union-attr]
        world.hold()
        await until(lambda: world.folders() == {"118.1", "119.1"})
    assert most <= 6


async def test_a_bad_snapshot_is_refused_with_a_notice_and_the_old_version_stays(
    world: World, write_snapshot: Write
) -> None:
    async with serving(world):
        await world.snapshot(write_snapshot(1))
        await until_announced(world, V(1, 1))
        bad = write_snapshot(2)
        (world.folder / "data" / bad.path / "model.safetensors").write_bytes(b"x" * 9000)
        await world.snapshot(bad)
        await until(lambda: world.notices)
        assert (await world.announced()).version == V(1, 1)  # type: ignore[union-attr]
        await world.snapshot(write_snapshot(3))
        await until_announced(world, V(3, 1))
    assert len(world.notices) == 1
    assert "version 2.1 is refused" in world.notices[0]
    assert "model.safetensors is not the file that was announced (sha256); version 1.1 stays" in world.notices[0]


async def test_a_snapshot_that_vanished_because_a_newer_one_came_is_passed_over_in_silence(
    world: World, write_snapshot: Write
) -> None:
    await world.bus.declare((topics.SNAPSHOTS, topics.WEIGHTS))
    gone, newer = write_snapshot(1), write_snapshot(2)
    async with serving(world) as weights:
        shutil.rmtree(world.folder / "data" / gone.path)
        stored = type("Stored", (), {"subject": topics.snapshot_subject(JOB), "sequence": 0})()
        await world.snapshot(newer)
        await weights._take(gone, stored)  # as if it had been read just before
        await until_announced(world, V(2, 1))
    assert world.notices == []


async def test_an_announcement_never_goes_back(world: World, write_snapshot: Write) -> None:
    async with serving(world):
        await world.snapshot(write_snapshot(7, epoch=1))
        await until_announced(world, V(7, 1))
        for step, epoch in ((5, 2), (7, 2), (6, 1)):
            await world.snapshot(write_snapshot(step, epoch))
        await world.snapshot(write_snapshot(8, epoch=2))
        await until_announced(world, V(8, 2))
        await world.snapshot(write_snapshot(9, epoch=1))
        await world.snapshot(write_snapshot(10, epoch=2))
        weights = await until_announced(world, V(10, 2))
        assert weights.kept == [V(8, 2), V(10, 2)]
        await until(lambda: world.folders() == {"8.2", "10.2"})


async def test_when_the_announced_files_are_lost_a_redone_version_takes_their_place(
    world: World, write_snapshot: Write
) -> None:
    async with serving(world) as weights:
        await world.snapshot(write_snapshot(7, epoch=1))
        await until_announced(world, V(7, 1))
        for path in (world.folder / "shared", world.folder / "data" / "snapshots"):
            shutil.rmtree(path)
        await until(lambda: V(7, 1) not in weights.present)
        await world.snapshot(write_snapshot(5, epoch=2))
        await until_announced(world, V(5, 2))


async def test_the_durable_step_follows_the_ledger(world: World, write_snapshot: Write) -> None:
    async with serving(world):
        await world.snapshot(write_snapshot(3))
        before = await until_announced(world, V(3, 1))
        await world.trained(2)
        await world.trained(3)

        async def durable() -> bool:
            return (await world.announced()).durable_step == 3  # type: ignore[union-attr]

        await until(durable)
        assert (await world.announced()).version == before.version  # type: ignore[union-attr]


async def test_a_new_process_announces_nothing_that_stands_already_and_makes_the_copies_again(
    world: World, write_snapshot: Write
) -> None:
    async with serving(world):
        for step in (1, 2):
            await world.snapshot(write_snapshot(step))
            await until_announced(world, V(step, 1))
        await world.trained(2)

        async def durable() -> bool:
            return (await world.announced()).durable_step == 2  # type: ignore[union-attr]

        await until(durable)
    before = await world.bus.last_sequence(topics.WEIGHTS.name)
    standing = await world.announced()
    assert standing is not None
    shutil.rmtree(world.folder / "shared")
    async with serving(world) as weights:
        await until(lambda: weights.present == {V(1, 1), V(2, 1)})
        assert (Path(standing.local_path) / "model.safetensors").exists()
        await world.snapshot(write_snapshot(3))
        await until_announced(world, V(3, 1))
    assert await world.bus.last_sequence(topics.WEIGHTS.name) - before <= 2  # the new version, and `kept` after it


async def test_a_new_process_at_another_address_announces_the_same_version_there(
    world: World, write_snapshot: Write
) -> None:
    async with serving(world):
        await world.snapshot(write_snapshot(1))
        await until_announced(world, V(1, 1))
    async with serving(world, url="http://there:2"):

        async def moved() -> bool:
            return (await world.announced()).urls == [f"http://there:2/{JOB}/1.1"]  # type: ignore[union-attr]

        await until(moved)


async def test_two_processes_at_once_never_take_the_announcement_back(world: World, write_snapshot: Write) -> None:
    async with serving(world), serving(world, url="http://there:2"):
        highest = -1
        for step in range(12):
            await world.snapshot(write_snapshot(step, size=10))

            async def reached(step: int = step) -> bool:
                nonlocal highest
                found = await world.announced()
                if found is not None:
                    assert found.version.step >= highest
                    highest = found.version.step
                return highest == step

            await until(reached)


async def test_a_foreign_snapshot_is_refused(world: World, write_snapshot: Write) -> None:
    async with serving(world):
        await world.bus.publish(topics.snapshot_subject(JOB), b"junk")
        await until(lambda: world.notices)
        assert await world.announced() is None
    assert "cannot be read" in world.notices[0]
