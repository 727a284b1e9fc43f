"""Announcing and pruning versions, and waiting for batches, over the fake broker."""

import asyncio

import pytest

from services.trainer import snapshots
from services.trainer.hand_over import HandOver
from services.trainer.view import TrainerView
from shared.wire.bus.memory import MemoryBus
from shared.wire.ledger import Fenced, Ledger
from shared.wire.messages import AskBatch, Batched, BatchReply, FileEntry, Snapshot, Version, Weights, decode, encode
from shared.wire.topics import BUCKETS, SHARED_STREAMS, batch_subject, job_streams, snapshot_subject, weights_subject

FILES = [FileEntry(name="model.safetensors", size=4, sha256="0" * 64)]


async def a_bus() -> MemoryBus:
    bus = MemoryBus()
    await bus.declare([*SHARED_STREAMS, *job_streams("j")], BUCKETS)
    return bus


def folder(data, step, epoch, size=4):
    path = snapshots.folder_of(data, "j", Version(step, epoch))
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"x" * size)


def names(data) -> list[str]:
    return sorted(p.name for p in (data / "snapshots" / "j").iterdir())


async def announce_weights(bus, version, kept=()):
    message = Weights(job="j", version=version, files=FILES, host="h", local_path="", urls=[], kept=[version, *kept])
    await bus.publish(weights_subject("j"), encode(message))


async def test_the_newest_version_is_the_last_value_and_publishing_twice_is_publishing_once(tmp_path):
    bus = await a_bus()
    for _ in range(2):
        await snapshots.publish(bus, tmp_path, "j", Version(3, 1), FILES)
    stored = await bus.get("snapshots", subject=snapshot_subject("j"))
    snapshot = decode(Snapshot, stored.data)
    assert snapshot.version == Version(3, 1) and snapshot.path == "snapshots/j/3.1" and stored.sequence == 1


async def test_an_older_holder_cannot_announce_over_a_newer_one(tmp_path):
    bus = await a_bus()
    await snapshots.publish(bus, tmp_path, "j", Version(2, 5), FILES)
    with pytest.raises(Fenced, match=r"2\.5"):
        await snapshots.publish(bus, tmp_path, "j", Version(9, 4), FILES)
    await snapshots.publish(bus, tmp_path, "j", Version(1, 6), FILES)


async def test_the_newest_fetchable_version_has_all_its_files(tmp_path):
    bus = await a_bus()
    assert await snapshots.newest_fetchable(bus, tmp_path, "j") is None
    await announce_weights(bus, Version(2, 1))
    await snapshots.publish(bus, tmp_path, "j", Version(3, 1), FILES)
    assert await snapshots.newest_fetchable(bus, tmp_path, "j") is None
    folder(tmp_path, 2, 1)
    folder(tmp_path, 3, 1, size=3)  # cut short
    assert await snapshots.newest_fetchable(bus, tmp_path, "j") == Version(2, 1)


async def test_what_engines_may_fetch_is_never_pruned(tmp_path):
    bus = await a_bus()
    for step in range(6):
        folder(tmp_path, step, 1)
    await announce_weights(bus, Version(3, 1), kept=[Version(0, 1)])
    assert sorted(await snapshots.prune(bus, tmp_path, "j", Version(5, 1))) == ["1.1", "2.1"]
    assert names(tmp_path) == ["0.1", "3.1", "4.1", "5.1"]


async def test_the_current_version_survives_folders_of_later_steps_that_were_never_announced(tmp_path):
    bus = await a_bus()
    for step, epoch in [(7, 1), (8, 1), (5, 2)]:
        folder(tmp_path, step, epoch)
    await snapshots.prune(bus, tmp_path, "j", Version(5, 2))
    assert "5.2" in names(tmp_path)


async def test_over_a_hundred_versions_the_disk_holds_a_few(tmp_path):
    bus = await a_bus()
    for step in range(120):
        folder(tmp_path, step, 1)
        await snapshots.publish(bus, tmp_path, "j", Version(step, 1), FILES)
        if step % 3 == 0:
            await announce_weights(bus, Version(step, 1))
        await snapshots.prune(bus, tmp_path, "j", Version(step, 1))
        assert len(names(tmp_path)) <= 4


class Waiting:
    """A trainer's side of the hand-over, with a ledger that it shares with a played buffer."""

    def __init__(self, bus) -> None:
        self.view, self.told = TrainerView(), []
        self.ledger = Ledger(bus, "j", "trainer", "me", self.view.apply)
        self.buffer = Ledger(bus, "j", "replay-buffer", "test", lambda *_: None)

        async def tell(text: str) -> None:
            self.told.append(text)

        self.hand_over = HandOver(bus, "j", self.ledger, self.view, tell=tell, silence_seconds=0.3)

    async def write(self, step: int) -> int:
        return await self.buffer.append(lambda: Batched(epoch=0, step=step, trainer_epoch=1, samples=[]))


async def test_a_recorded_batch_is_not_asked_for():
    bus = await a_bus()
    w = Waiting(bus)
    await w.buffer.open()
    await w.write(1)
    await w.ledger.open()
    assert (await w.hand_over.batch(1, lambda: False)).step == 1


async def test_a_batch_is_asked_for_until_it_stands_in_the_ledger():
    bus = await a_bus()
    w = Waiting(bus)
    await w.buffer.open()
    await w.ledger.open()
    asked = []

    async def answer(data: bytes) -> bytes:
        asked.append(decode(AskBatch, data))
        if len(asked) < 3:
            return encode(BatchReply(status="wait"))
        return encode(BatchReply(status="ready", sequence=await w.write(1)))

    await bus.serve(batch_subject("j"), answer)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(w.ledger.follow())
        assert (await asyncio.wait_for(w.hand_over.batch(1, lambda: False), 10)).step == 1
        following.cancel()
    assert [(a.step, a.trainer_epoch) for a in asked] == [(1, w.ledger.epoch)] * 3


async def test_silence_is_told_once_and_its_end_too():
    bus = await a_bus()
    w = Waiting(bus)
    await w.buffer.open()
    await w.ledger.open()
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(w.ledger.follow())
        waiting = tasks.create_task(w.hand_over.batch(1, lambda: False))
        while not w.told:
            await asyncio.sleep(0.02)

        async def answer(data: bytes) -> bytes:
            return encode(BatchReply(status="ready", sequence=await w.write(1)))

        await bus.serve(batch_subject("j"), answer)
        assert (await asyncio.wait_for(waiting, 10)).step == 1
        following.cancel()
    assert len(w.told) == 2 and "no replay buffer of job j" in w.told[0] and "answers again" in w.told[1]


async def test_a_wait_that_is_given_up_has_no_batch():
    bus = await a_bus()
    w = Waiting(bus)
    await w.ledger.open()
    assert await w.hand_over.batch(1, lambda: True) is None
