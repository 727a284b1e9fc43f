"""The two buses that the contract suite holds to the same promises, and names that no other test uses."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from shared.wire.bus.api import Bus
from shared.wire.bus.memory import MemoryBus
from shared.wire.bus.nats import NatsBus

_numbers = itertools.count()
Buses = Callable[[], AbstractAsyncContextManager[tuple[Bus, Bus]]]


@pytest.fixture(params=["memory", "nats"])
def buses(request: pytest.FixtureRequest) -> Buses:
    """`async with buses() as (bus, other)`: two connections to one broker."""

    @asynccontextmanager
    async def memory() -> AsyncIterator[tuple[Bus, Bus]]:
        bus = MemoryBus()
        other = bus.another()
        try:
            yield bus, other
        finally:
            await other.close()
            await bus.close()

    @asynccontextmanager
    async def nats() -> AsyncIterator[tuple[Bus, Bus]]:
        url = request.getfixturevalue("nats_url")
        bus = await NatsBus.connect(url, name="contract")
        other = await NatsBus.connect(url, name="contract other")
        try:
            yield bus, other
        finally:
            await other.close()
            await bus.close()

    if request.param == "nats":
        request.getfixturevalue("nats_url")
        return nats
    return memory


@pytest.fixture
def job() -> str:
    """A job id that no other test has."""
    return f"contract-{next(_numbers)}"


@pytest.fixture
def eventually() -> Callable[..., Awaitable[None]]:
    """`await eventually(lambda: condition)`: returns when it holds, fails after a deadline."""
    import asyncio
    import time

    async def wait(condition: Callable[[], Any], seconds: float = 15.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the condition never held"
            await asyncio.sleep(0.01)

    return wait
