"""Locks over a key-value bucket whose keys expire: create to take, update by revision to keep, delete to release.

A lock saves work and decides nothing: its holder may be late to learn that it is lost. What must not happen twice is
guarded by the ledger's compare-and-set.

The bucket sits in memory. A restarted broker has forgotten it and counts revisions from 1 again, so a holder looks
whose value stands there before it renews: by revision alone it could renew somebody else's lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable

from shared.wire.bus.api import BusError, Conflict, KeyValue, NotFound


async def take(
    keys: KeyValue, name: str, holder: str, ttl_seconds: float, remake: Callable[[], Awaitable[None]]
) -> KeyLock | None:
    """The lock, if it is free. `remake` declares the bucket again, where the broker has forgotten it."""
    value = f"{holder} {secrets.token_hex(8)}".encode()
    asked = time.monotonic()
    try:
        revision = await _create(keys, name, value, remake)
    except Conflict:
        return None
    return KeyLock(keys, name, value, revision, ttl_seconds, asked, remake)


async def _create(keys: KeyValue, name: str, value: bytes, remake: Callable[[], Awaitable[None]]) -> int:
    try:
        return await keys.create(name, value)
    except NotFound:
        await remake()
        return await keys.create(name, value)


class KeyLock:
    """A held lock, renewed every third of its life by a task of its own."""

    def __init__(
        self,
        keys: KeyValue,
        name: str,
        value: bytes,
        revision: int,
        ttl_seconds: float,
        taken_at: float,
        remake: Callable[[], Awaitable[None]],
    ) -> None:
        self.name = name
        self._keys = keys
        self._value = value
        self._revision = revision
        self._ttl_seconds = ttl_seconds
        self._remake = remake
        self._lost = False
        self._valid_until = taken_at + ttl_seconds
        self._renewing = asyncio.create_task(self._renew(), name=f"lock {name}")

    @property
    def lost(self) -> bool:
        return self._lost or time.monotonic() > self._valid_until

    async def release(self) -> None:
        """Give it back at once, so that nobody waits for its time to run out."""
        held, self._lost = not self.lost, True
        self._renewing.cancel()
        with contextlib.suppress(asyncio.CancelledError, BusError):
            await self._renewing
        if held:
            with contextlib.suppress(BusError):
                await self._keys.delete(self.name, self._revision)

    async def _renew(self) -> None:
        while not self.lost:
            await asyncio.sleep(self._ttl_seconds / 3)
            asked = time.monotonic()
            try:
                self._revision = await self._renewed()
            except Conflict:
                break
            except BusError:
                continue  # `lost` follows by the clock
            self._valid_until = asked + self._ttl_seconds
        self._lost = True

    async def _renewed(self) -> int:
        try:
            entry = await self._keys.get(self.name)
        except NotFound:
            entry = None
        if entry is None:
            return await _create(self._keys, self.name, self._value, self._remake)
        if entry.data != self._value:
            raise Conflict(f"lock {self.name} has another holder")
        return await self._keys.update(self.name, self._value, entry.revision)
