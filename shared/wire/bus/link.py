"""One nats-py connection that can be trusted: never hangs, never gives up, and says when it was away.

nats-py 2.16 has four faults that this file works around; its private names are used for that and its version pinned:
- with unsent data and a silent peer it never fails over: the watchdog aborts the socket;
- `publish` can block on a full buffer and then swallows cancellation: `send` waits for room itself, before;
- a request in flight when the connection breaks waits for its time-out: `call` fails at once;
- `close` can wait for a peer that does not read: it is given a second, then the socket is aborted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ConnectionClosedError, Error, OutboundBufferLimitError

from shared.wire.bus.api import Unreachable
from shared.wire.bus.signal import Signal

log = logging.getLogger(__name__)
PING_SECONDS = 3
WATCH_SECONDS = 1.0
UNSENT_BYTES = 16 * 1024 * 1024
SAY_SECONDS = 5.0
CLOSE_SECONDS = 1.0
ARRIVAL_SECONDS = 2.0

OnMessage = Callable[[Msg], Awaitable[None]]


class Away(Exception):
    """The connection broke, or the answer did not come in time: whether the server got the message is unknown."""


class Link:
    """A connection with its watchdog and its table of awaited answers."""

    def __init__(self, url: str, quiet: bool) -> None:
        self.url = f"nats://{url.rpartition('://')[2].rpartition('@')[2]}"  # as it is shown: without a password
        self._level = logging.DEBUG if quiet else logging.WARNING
        self.returned = Signal()  # notified after each reconnect
        self.returns = 0
        self._client = Client()
        self._closed = asyncio.Event()
        self._closing = False
        self._inbox = ""
        self._numbers = itertools.count()
        self._awaited: dict[str, asyncio.Future[Msg]] = {}
        self._watchdog: asyncio.Task[None] | None = None
        self._last_error = ""

    @classmethod
    async def open(cls, url: str, name: str, *, quiet: bool = False) -> Link:
        """Connect, however long it takes for a server to be there; says every few seconds what it waits for.

        `quiet`: leaves it to another link to the same server to say what happens.
        """
        link = cls(url, quiet)
        connecting = asyncio.create_task(
            link._client.connect(
                url,
                name=name,
                allow_reconnect=True,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,  # type: ignore[arg-type]
                connect_timeout=2,
                ping_interval=PING_SECONDS,
                max_outstanding_pings=2,
                pending_size=4 * UNSENT_BYTES,
                error_cb=link._on_error,
                disconnected_cb=link._on_disconnected,
                reconnected_cb=link._on_reconnected,
                closed_cb=link._on_closed,
            )
        )
        try:
            patience = 1.0
            while not (await asyncio.wait({connecting}, timeout=patience))[0]:
                patience = SAY_SECONDS
                log.warning("waiting for NATS at %s; is it running? `slipstream up` starts it%s", link.url, link._why())
            connecting.result()
        except BaseException:
            while not connecting.done():
                # Again and again: `asyncio.wait_for` of Python 3.11 swallows a cancellation that comes with its result.
                connecting.cancel()
                await asyncio.wait({connecting}, timeout=0.1)
            raise
        link._inbox = link._client.new_inbox()
        await link.subscribe(f"{link._inbox}.*", link._on_answer)
        link._watchdog = asyncio.create_task(link._watch(), name="nats watchdog")
        return link

    @property
    def connected(self) -> bool:
        return self._client.is_connected

    @property
    def max_payload(self) -> int:
        return self._client.max_payload

    def new_inbox(self) -> str:
        return self._client.new_inbox()

    async def wait_connected(self, timeout_seconds: float) -> None:
        """Returns once there is a server; raises `Unreachable` when the time is up or the link is closed."""
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while not self._client.is_connected:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or self._client.is_closed:
                raise Unreachable(f"NATS at {self.url} was away for {timeout_seconds:g} s{self._why()}")
            await self.returned.wait(min(left, 0.5))

    async def send(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Hand a message to the connection; kept for the next one when there is none. At most once, as core is."""
        while self._client.pending_data_size > UNSENT_BYTES:
            if self._client.is_closed:
                break
            await asyncio.sleep(0.005)
        try:
            await self._client.publish(subject, data, reply=reply, headers=dict(headers) if headers else None)
        except ConnectionClosedError:
            raise Unreachable(f"the connection to NATS at {self.url} is closed") from None
        except OutboundBufferLimitError:
            raise Away(f"NATS at {self.url} is away and the buffer is full") from None

    async def call(
        self, subject: str, data: bytes = b"", *, timeout_seconds: float, headers: Mapping[str, str] | None = None
    ) -> Msg:
        """Send a request; its first answer. Raises `Away` when the connection breaks or the time is up."""
        return await self._answered(str(next(self._numbers)), subject, data, timeout_seconds, headers)

    async def arrived(self) -> None:
        """Returns when the server has taken all that was sent before: a message to ourselves has come back."""
        token = str(next(self._numbers))
        with contextlib.suppress(Away):
            await self._answered(token, f"{self._inbox}.{token}", b"", ARRIVAL_SECONDS, None)

    async def subscribe(self, subject: str, on_message: OnMessage, *, queue: str = "") -> Subscription:
        """Listen on `subject`, across reconnects. Nothing is dropped here: who asks must bound what comes."""
        try:
            return await self._client.subscribe(
                subject, queue=queue, cb=on_message, pending_msgs_limit=0, pending_bytes_limit=0
            )
        except ConnectionClosedError:
            raise Unreachable(f"the connection to NATS at {self.url} is closed") from None

    async def unsubscribe(self, subscription: Subscription) -> None:
        with contextlib.suppress(Error):
            await subscription.unsubscribe()

    async def closed(self) -> None:
        await self._closed.wait()

    async def close(self) -> None:
        """Send what is waiting and close, within two seconds."""
        self._closing = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        closing = asyncio.create_task(self._client.close())
        if not (await asyncio.wait({closing}, timeout=CLOSE_SECONDS))[0]:
            self._abort()
            if not (await asyncio.wait({closing}, timeout=0.5))[0]:
                closing.cancel()
        await asyncio.wait({closing}, timeout=0.3)
        self._fail_awaited("closed")
        self._closed.set()

    async def _answered(
        self, token: str, subject: str, data: bytes, timeout_seconds: float, headers: Mapping[str, str] | None
    ) -> Msg:
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._awaited[token] = answer
        late = asyncio.get_running_loop().call_later(timeout_seconds, _fail, answer, f"no answer on {subject}")
        try:
            await self.send(subject, data, reply=f"{self._inbox}.{token}", headers=headers)
            return await answer
        finally:
            late.cancel()
            del self._awaited[token]
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen, even when `send` failed first

    def _writer(self) -> Any:
        return getattr(self._client._transport, "_io_writer", None)

    def _abort(self) -> None:
        writer = self._writer()
        if writer is not None:
            writer.transport.abort()

    async def _watch(self) -> None:
        suspected = False
        connected: Any = None  # the socket of the last established connection; one still being tried has its own limit
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._client.is_connected:
                connected = self._writer()
            silent = self._client._pings_outstanding >= 2 and connected is not None
            if silent and suspected:  # twice, with time to read between: the process itself may have been stalled
                if connected is self._writer():
                    log.log(self._level, "NATS at %s does not answer, connecting anew", self.url)
                    self._abort()
                connected, silent = None, False
            suspected = silent

    async def _on_answer(self, message: Msg) -> None:
        answer = self._awaited.get(message.subject[len(self._inbox) + 1 :])
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def _on_error(self, error: Exception) -> None:
        self._last_error = f"{type(error).__name__}: {error}".strip(": ")
        level = logging.WARNING if "permissions" in str(error).lower() else logging.DEBUG
        log.log(level, "NATS at %s: %s", self.url, self._last_error)

    async def _on_disconnected(self) -> None:
        self._fail_awaited("the connection broke")
        if not self._closing:
            log.log(self._level, "lost NATS at %s, connecting again", self.url)

    async def _on_reconnected(self) -> None:
        log.log(self._level, "back on NATS at %s", self.url)
        self._last_error = ""
        self.returns += 1
        self.returned.notify()

    async def _on_closed(self) -> None:
        self._fail_awaited("closed")
        self._closed.set()
        self.returned.notify()

    def _fail_awaited(self, reason: str) -> None:
        for answer in self._awaited.values():
            _fail(answer, reason)

    def _why(self) -> str:
        return f" ({self._last_error})" if self._last_error else ""


def _fail(answer: asyncio.Future[Any], reason: str) -> None:
    if not answer.done():
        answer.set_exception(Away(reason))
