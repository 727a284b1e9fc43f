"""The bus: durable streams, request/reply, key-value and locks, behind one interface with two implementations.

`connect` gives the real one (nats-py over a nats-server); `memory.MemoryBus` is the fake that the contract suite in
`tests/contract/bus` holds to the same promises.
"""

from shared.wire.bus.api import (
    Ack,
    Bus,
    BusError,
    Conflict,
    Drift,
    Entry,
    KeyValue,
    Lock,
    NoResponders,
    NotFound,
    Stored,
    StreamFull,
    TimedOut,
    Unreachable,
)

__all__ = [
    "Ack", "Bus", "BusError", "Conflict", "Drift", "Entry", "KeyValue", "Lock", "NoResponders", "NotFound", "Stored",
    "StreamFull", "TimedOut", "Unreachable", "connect",
]  # fmt: skip


async def connect(url: str, *, name: str) -> Bus:
    """The real bus at `url` (`nats://host:port`), waiting for the server to come up; `name` shows in its monitoring."""
    from shared.wire.bus.nats import NatsBus

    return await NatsBus.connect(url, name=name)
