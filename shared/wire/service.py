"""The life of a service's process, written once: logging, bus, signals, tasks, heartbeat, drain, exit status.

    async def main(service: Service) -> None:
        service.loop(service.bus.consume(...), "grade")
        await service.stopping.wait()     # then drain, if there is something to drain

    raise SystemExit(run(main, "reward", Settings()))

SIGTERM or SIGINT sets `stopping`. `main` then has `drain_seconds` to return; whatever still runs is cancelled, the
bus is closed, the status is 0. An error that nobody handled ends the process with one line and status 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Generic, TypeVar

from shared.wire.bus import connect
from shared.wire.bus.api import Bus, BusError, Unreachable
from shared.wire.messages import Event, encode
from shared.wire.settings import CommonSettings, SettingsError
from shared.wire.telemetry import configure_logging, heartbeat
from shared.wire.topics import BUCKETS, SHARED_STREAMS, event_subject

__all__ = ["CommonSettings", "LoopEnded", "Service", "SettingsError", "run"]

log = logging.getLogger(__name__)
EVENT_PATIENCE_SECONDS = 5.0
S = TypeVar("S", bound=CommonSettings)


class LoopEnded(Exception):
    """A loop that should run for as long as the process returned."""


class Service(Generic[S]):
    """What `main` is given."""

    def __init__(
        self, bus: Bus, tasks: asyncio.TaskGroup, stopping: asyncio.Event, name: str, settings: S, id: str = ""
    ) -> None:
        self.bus = bus
        self.tasks = tasks
        self.stopping = stopping
        self.name = name
        self.settings = settings
        self.id = id or f"{name}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.state = "ready"
        self.gauges: dict[str, float] = {}
        self.detail: dict[str, Any] = {}

    def loop(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[None]:
        """Run `coroutine` as a task that must not end before the process stops: an end unasked is an error."""

        async def watched() -> None:
            await coroutine
            if not self.stopping.is_set():
                raise LoopEnded(f"{name} ended unasked")

        return self.tasks.create_task(watched(), name=name)

    async def event(self, job: str, kind: str, body: dict[str, Any], step: int = -1, message_id: str = "") -> None:
        """Tell people. Never raises: events decide nothing. With `message_id`, telling twice is telling once."""
        event = Event(job=job, event=kind, at=time.time(), step=step, body=body)
        try:
            await self.bus.publish(
                event_subject(job, kind), encode(event), message_id=message_id, patience_seconds=EVENT_PATIENCE_SECONDS
            )
        except (BusError, TypeError, ValueError) as error:
            log.warning("event %s of %s not told: %s", kind, job, error)


Main = Callable[[Service[S]], Awaitable[None]]


Around = Callable[[], AbstractAsyncContextManager[Any]]


def run(main: Main[S], service: str, settings: S, around: Around = contextlib.nullcontext) -> int:
    """Run a service until it is told to stop; its exit status.

    `around` is entered before the broker is reached and left after the connection is closed: for what must answer
    while the broker is away.
    """
    configure_logging(service, settings.log_level, settings.log_format)
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:  # Windows
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            return runner.run(_life(main, service, settings, around))
        except BaseExceptionGroup as group:
            failures = list(_leaves(group))
        except KeyboardInterrupt:
            return 130
        except Exception as failure:  # the end of the process: said in one line
            failures = [failure]
    for error in failures:
        log.error(
            "stopped by %s: %s", type(error).__name__, " ".join(str(error).split()),
            exc_info=error if settings.log_level == "debug" else None,
        )  # fmt: skip
    return 1


async def _life(main: Main[S], name: str, settings: S, around: Around) -> int:
    stopping = asyncio.Event()
    _stop_on_signals(stopping)
    async with around():
        return await _connected(main, name, settings, stopping)


async def _connected(main: Main[S], name: str, settings: S, stopping: asyncio.Event) -> int:
    bus = await _unless_stopped(connect(settings.nats_url, name=name), stopping)
    if bus is None:
        return 0
    try:
        await _serve(bus, main, name, settings, stopping)
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3):
                await bus.close()
    log.info("stopped")
    return 0


class _Stopped(Exception):
    """Ends the task group, and with it every task in it, once the process has drained."""


async def _serve(bus: Bus, main: Main[S], name: str, settings: S, stopping: asyncio.Event) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            service = Service(bus, tasks, stopping, name, settings)
            log.info("ready as %s on %s", service.id, settings.nats_url)
            state = partial(getattr, service, "state")
            tasks.create_task(heartbeat(bus, name, service.id, state, service.gauges, service.detail), name="heartbeat")
            tasks.create_task(_fail_when_closed(bus), name="connection")
            running = tasks.create_task(_main(main, service), name="main")
            await stopping.wait()
            log.info("stopping")
            service.state = "stopping"
            _, late = await asyncio.wait({running}, timeout=settings.drain_seconds)
            if late:
                log.warning("did not finish in %g s, cancelled", settings.drain_seconds)
            raise _Stopped
    except* _Stopped:
        pass


async def _main(main: Main[S], service: Service[S]) -> None:
    await service.bus.declare(SHARED_STREAMS, BUCKETS)  # whoever comes first makes what all of them read
    await main(service)


async def _fail_when_closed(bus: Bus) -> None:
    await bus.closed()
    raise Unreachable("the connection to the broker was closed for good")


async def _unless_stopped(work: Coroutine[Any, Any, Bus], stopping: asyncio.Event) -> Bus | None:
    """The result of `work`; None, with it cancelled, when the process is told to stop first."""
    working, stop = asyncio.create_task(work), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({working, stop}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        stop.cancel()
        while not working.done():
            # Again and again: `asyncio.wait_for` of Python 3.11 swallows a cancellation that comes with its result.
            working.cancel()
            await asyncio.wait({working}, timeout=0.1)
        await asyncio.gather(working, stop, return_exceptions=True)


def _stop_on_signals(stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        if sys.platform == "win32":
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stopping.set))
        else:
            loop.add_signal_handler(number, stopping.set)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
