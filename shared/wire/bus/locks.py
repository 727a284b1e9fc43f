"""Locks over a key-value bucket whose keys expire: create to take, update by revision to keep, delete to release.

A lock saves work and decides nothing: its holder may be late to learn that it is lost, and while the broker is away it
goes on. What must not happen twice is guarded by the ledger's compare-and-set.

The bucket sits in memory. A restarted broker has forgotten it and counts revisions from 1 again, so a holder looks
whose value stands there before it renews: by revision alone it could renew somebody else's lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable

from shared.wire.bus.api import BusError, Conflict, KeyValue, NotFound

log = logging.getLogger(__name__)


async def take(
    keys: KeyValue, name: str, holder: str, ttl_seconds: float, remake: Callable[[], Awaitable[None]]
) -> KeyLock | None:
    """The lock, if it is free. `remake` declares the bucket again, where the broker has forgotten it."""
    value = f"{holder} {secrets.token_hex(8)}".encode()
    try:
        revision = await _create(keys, name, value, remake)
    except Conflict:
        return None
    return KeyLock(keys, name, value, revision, ttl_seconds, remake)


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
        remake: Callable[[], Awaitable[None]],
    ) -> None:
        self.name = name
        self._keys = keys
        self._value = value
        self._revision = revision
        self._ttl_seconds = ttl_seconds
        self._remake = remake
        self.lost = False
        self._renewing = asyncio.create_task(self._renew(), name=f"lock {name}")

    async def release(self) -> None:
        """Give it back at once, so that nobody waits for its time to run out."""
        held, self.lost = not self.lost, True
        self._renewing.cancel()
        with contextlib.suppress(asyncio.CancelledError, BusError):
            await self._renewing
        if held:
            with contextlib.suppress(BusError):
                await self._keys.delete(self.name, self._revision)

    async def _renew(self) -> None:
        while not self.lost:
            await asyncio.sleep(self._ttl_seconds / 3)
            try:
                self._revision = await self._renewed()
            except Conflict:  # somebody else has it
                self.lost = True
            except BusError as error:  # away: nobody else can take it there either, or we learn it when it is back
                log.debug("lock %s not renewed: %s", self.name, error)

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
