"""One hand on the ledger a holder: every record once, in order; a newer epoch fences the older."""

from __future__ import annotations

import asyncio

import pytest

from shared.wire.bus.api import Ack, Conflict, NotFound
from shared.wire.bus.memory import MemoryBus
from shared.wire.ledger import Fenced, Ledger, LedgerBroken, read_ledger
from shared.wire.messages import Dropped, EpochOpened, Issued, encode
from shared.wire.topics import ledger


def issued(group: int) -> Issued:
    return Issued(epoch=0, group=group, row=group, row_digest="", n=2, version_step=0)


class Reader:
    """What a role knows: every record with its sequence."""

    def __init__(self, bus, role="scheduler", holder="one"):
        self.seen = []
        self.ledger = Ledger(bus, "j", role, holder, lambda sequence, record: self.seen.append((sequence, record)))

    @property
    def groups(self):
        return [record.group for _, record in self.seen if isinstance(record, Issued)]

    def next_group(self):
        return issued(len(self.groups))


async def made() -> MemoryBus:
    bus = MemoryBus()
    await bus.declare([ledger("j")])
    return bus


async def test_a_holder_opens_with_the_next_epoch_of_its_role():
    bus = await made()
    first, buffer, second = Reader(bus), Reader(bus, role="replay-buffer"), Reader(bus, holder="two")
    for reader in (first, buffer, second):
        await reader.ledger.open()
    assert [r.ledger.epoch for r in (first, buffer, second)] == [1, 1, 2]
    opened = [record for _, record in second.seen]
    assert [(r.role, r.epoch, r.holder) for r in opened if isinstance(r, EpochOpened)] == [
        ("scheduler", 1, "one"),
        ("replay-buffer", 1, "one"),
        ("scheduler", 2, "two"),
    ]


async def test_own_records_are_applied_once_with_epoch_and_time_set():
    bus = await made()
    reader = Reader(bus)
    await reader.ledger.open()
    assert await reader.ledger.append(lambda: issued(0)) == 2
    sequence, record = reader.seen[-1]
    assert (sequence, record.epoch) == (2, 1) and record.at > 1.6e9
    assert [s async for s, _, _ in read_ledger(bus, "j")] == [1, 2]


async def test_writers_that_race_decide_again_on_what_the_other_wrote():
    bus = await made()
    roles = [Reader(bus, role=role) for role in ("scheduler", "replay-buffer", "trainer")]
    for reader in roles:
        await reader.ledger.open()
    await asyncio.gather(*(reader.ledger.append(reader.next_group) for reader in roles for _ in range(20)))
    for reader in roles:
        await reader.ledger.append(lambda: None)
        assert reader.groups == list(range(60))
        assert [sequence for sequence, _ in reader.seen] == list(range(1, 64))


async def test_nothing_to_write_is_only_said_after_everything_was_read():
    bus = await made()
    one, two = Reader(bus), Reader(bus, role="trainer")
    await one.ledger.open()
    await two.ledger.open()
    await one.ledger.append(one.next_group)
    assert await two.ledger.append(lambda: None) is None
    assert two.groups == [0]


async def test_a_record_whose_answer_got_lost_is_found_and_not_written_twice():
    bus = await made()
    publish = bus.publish
    lost = []

    async def without_answer(subject, data, **options):
        ack = await publish(subject, data, **options)
        if not lost:
            lost.append(ack)
            return await publish(subject, data, **options)  # the retry is refused: its own record stands there
        return ack

    reader = Reader(bus)
    await reader.ledger.open()
    bus.publish = without_answer
    assert await reader.ledger.append(lambda: issued(0)) == 2
    assert lost == [Ack(2)]
    assert reader.groups == [0]
    assert await bus.last_sequence(ledger("j").name) == 2


async def test_a_newer_holder_fences_the_older_at_its_next_write():
    bus = await made()
    old, new = Reader(bus), Reader(bus, holder="two")
    await old.ledger.open()
    await new.ledger.open()
    with pytest.raises(Fenced, match=r"scheduler of j: epoch 1 is fenced by epoch 2"):
        await old.ledger.append(lambda: issued(0))
    assert await bus.last_sequence(ledger("j").name) == 2


async def test_a_fenced_holder_learns_it_while_following_and_waiting():
    bus = await made()
    old, new = Reader(bus), Reader(bus, holder="two")
    await old.ledger.open()
    following = asyncio.create_task(old.ledger.follow())
    waiting = asyncio.create_task(old.ledger.wait_changed(10))
    await asyncio.sleep(0)
    await new.ledger.open()
    for task in (following, waiting):
        with pytest.raises(Fenced):
            await asyncio.wait_for(task, 5)


async def test_following_applies_others_records_and_wakes_who_waits():
    bus = await made()
    one, two = Reader(bus), Reader(bus, role="trainer")
    await one.ledger.open()
    await two.ledger.open()
    following = asyncio.create_task(two.ledger.follow())
    for group in range(5):
        await one.ledger.append(one.next_group)
        await two.ledger.append(lambda: Dropped(epoch=0, samples=[], reason="stale"))
        while len(two.groups) <= group:
            await two.ledger.wait_changed(5)
    assert [sequence for sequence, _ in two.seen] == list(range(1, two.ledger.sequence + 1))
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_waiting_for_a_change_ends_when_the_time_is_up():
    bus = await made()
    reader = Reader(bus)
    await reader.ledger.open()
    await asyncio.wait_for(reader.ledger.wait_changed(0.01), 5)


async def test_a_foreign_record_is_an_error_that_names_its_place():
    bus = await made()
    await bus.publish("ledger.j.scheduler", encode(issued(0)))
    await bus.publish("ledger.j.scheduler", b"\x93not a record")
    with pytest.raises(LedgerBroken, match=r"ledger of j, sequence 2 \(ledger.j.scheduler\)"):
        await Reader(bus).ledger.open()
    with pytest.raises(LedgerBroken, match="sequence 2"):
        async for _ in read_ledger(bus, "j"):
            pass


async def test_a_missing_record_is_an_error():
    bus = await made()
    for group in range(3):
        await bus.publish("ledger.j.scheduler", encode(issued(group)))
    bus._broker.stream("ledger-j").remove(2)
    with pytest.raises(LedgerBroken, match="sequence 2 is missing"):
        await Reader(bus).ledger.open()
    with pytest.raises(LedgerBroken, match="sequence 2 is missing"):
        async for _ in read_ledger(bus, "j"):
            pass


async def test_opening_waits_for_a_ledger_that_is_just_being_made():
    bus = MemoryBus()
    reader = Reader(bus)
    opening = asyncio.create_task(reader.ledger.open())
    await asyncio.sleep(0)
    await bus.declare([ledger("j")])
    await asyncio.wait_for(opening, 5)
    assert reader.ledger.epoch == 1


async def test_a_ledger_that_never_was_is_not_found_by_a_reader():
    with pytest.raises(NotFound):
        async for _ in read_ledger(MemoryBus(), "j"):
            pass


async def test_the_expected_sequence_is_what_was_read():
    bus = await made()
    reader = Reader(bus)
    await reader.ledger.open()
    await bus.publish("ledger.j.trainer", encode(issued(0)))
    with pytest.raises(Conflict):
        await bus.publish("ledger.j.scheduler", encode(issued(1)), expected_last_sequence=reader.ledger.sequence)
    await reader.ledger.append(reader.next_group)
    assert reader.groups == [0, 1]
