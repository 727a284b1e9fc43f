"""One thread for everything heavy, so that locks, heartbeats and the ledger go on while torch computes.

Always the same thread: OpenMP builds a team of workers for each thread that calls it. A daemon: a process that is told
to stop must not wait for a step that takes minutes.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Call = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class ComputeThread:
    """`await compute(function)` runs it in the thread. `stopping()` is what long functions ask between two pieces."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._stop = threading.Event()
        threading.Thread(target=self._work, name="compute", daemon=True).start()

    def stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        self._stop.set()

    async def __call__(self, function: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put((function, loop, future))
        return await future

    def _work(self) -> None:
        while True:
            function, loop, future = self._calls.get()
            if future.cancelled():
                continue
            try:
                result, error = function(), None
            except BaseException as caught:  # handed to whoever waits for the call
                result, error = None, caught
            try:
                loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
