"""Waking every task that waits for a change, without missing one between two looks at the state."""

from __future__ import annotations

import asyncio
import contextlib


class Signal:
    """`wait` returns at the first `notify` after it was called. Look at the state, then wait: nothing runs between."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, timeout_seconds: float | None = None) -> None:
        """Also returns, without a word, when the time is up."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await future
        finally:
            self._waiting.discard(future)
