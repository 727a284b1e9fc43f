"""Locks over a key-value bucket whose keys expire: create to take, update by revision to keep, delete to release.

A lock saves work and decides nothing: its holder may be late to learn that it is lost. What must not happen twice is
guarded by the ledger's compare-and-set.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from shared.wire.bus.api import BusError, Conflict, KeyValue, NotFound


class KeyLock:
    """A held lock, renewed every third of its life by a task of its own."""

    def __init__(
        self,
        keys: KeyValue,
        name: str,
        holder: str,
        revision: int,
        ttl_seconds: float,
        remake: Callable[[], Awaitable[None]],
    ) -> None:
        self.name = name
        self._keys = keys
        self._holder = holder.encode()
        self._revision = revision
        self._ttl_seconds = ttl_seconds
        self._remake = remake
        self._lost = False
        self._valid_until = time.monotonic() + ttl_seconds
        self._renewing = asyncio.create_task(self._renew(), name=f"lock {name}")

    @property
    def lost(self) -> bool:
        return self._lost or time.monotonic() > self._valid_until

    async def release(self) -> None:
        """Give it back at once, so that nobody waits for its time to run out."""
        self._lost = True
        self._renewing.cancel()
        with contextlib.suppress(asyncio.CancelledError, BusError):
            await self._renewing
        with contextlib.suppress(BusError):
            await self._keys.delete(self.name, self._revision)

    async def _renew(self) -> None:
        while not self.lost:
            await asyncio.sleep(self._ttl_seconds / 3)
            asked = time.monotonic()
            try:
                self._revision = await self._keys.update(self.name, self._holder, self._revision)
            except Conflict:
                break
            except NotFound:  # the broker forgot the bucket: it sits in memory
                try:
                    await self._remake()
                    self._revision = await self._keys.create(self.name, self._holder)
                except Conflict:
                    break
                except BusError:
                    continue
            except BusError:
                continue  # `lost` follows by the clock
            self._valid_until = asked + self._ttl_seconds
        self._lost = True
