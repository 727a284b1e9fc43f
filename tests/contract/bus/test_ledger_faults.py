"""The ledger on a server that is killed while three roles write: each record once, the same order for all."""

from __future__ import annotations

import asyncio

from shared.wire.bus.nats import NatsBus
from shared.wire.ledger import Fenced, Ledger, read_ledger
from shared.wire.messages import Issued
from shared.wire.topics import ledger

ROLES = ("scheduler", "replay-buffer", "trainer")


async def test_records_are_written_once_and_read_in_one_order_through_kills(nats_server):
    server = nats_server()
    buses = [await NatsBus.connect(server.url, name=role) for role in ROLES]
    await buses[0].declare([ledger("j")])
    seen: dict[str, list] = {role: [] for role in ROLES}

    def hand(role, bus):
        return Ledger(bus, "j", role, role, lambda sequence, record: seen[role].append((sequence, record)))

    ledgers = {role: hand(role, bus) for role, bus in zip(ROLES, buses, strict=True)}
    for each in ledgers.values():
        await each.open()

    def next_group(role):
        groups = [record.group for _, record in seen[role] if isinstance(record, Issued)]
        return Issued(epoch=0, group=len(groups), row=0, row_digest=role, n=1, version_step=0)

    async def write(role):
        for _ in range(60):
            await ledgers[role].append(lambda: next_group(role))

    following = [asyncio.create_task(each.follow()) for each in ledgers.values()]
    writing = asyncio.gather(*(write(role) for role in ROLES))
    for written in (40, 90):
        while len(seen["trainer"]) < written:
            await asyncio.sleep(0.005)
        server.kill()
        await asyncio.sleep(0.2)
        await asyncio.to_thread(server.restart)
    await asyncio.wait_for(writing, 100)
    for each in ledgers.values():
        await each.append(lambda: None)
    for role in ROLES:
        assert [sequence for sequence, _ in seen[role]] == list(range(1, 184))
        assert [r.group for _, r in seen[role] if isinstance(r, Issued)] == list(range(180))
    assert [s async for s, _, _ in read_ledger(buses[0], "j")] == list(range(1, 184))

    second = Ledger(buses[1], "j", "scheduler", "another", lambda *_: None)
    await second.open()
    assert second.epoch == 2
    try:
        await ledgers["scheduler"].append(lambda: next_group("scheduler"))
        raise AssertionError("a fenced holder wrote")
    except Fenced:
        pass
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    for bus in buses:
        await bus.close()
