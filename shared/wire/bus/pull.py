"""Pulling from a consumer: overlapping requests, bounded in messages and bytes, over one inbox.

What was asked for and has not come is `outstanding`. Requests end with a status that says how much of them was left;
a status that says that the consumer is in trouble, silence, or a reconnect makes the pull `broken`: whoever pulls then
looks whether the consumer is still there and starts a new one. Messages that were on the way to a broken pull are
delivered again (consume), or read again from the last sequence seen (follow).
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import Header

from shared.wire.bus.api import Stored
from shared.wire.bus.jetstream import NANOSECONDS
from shared.wire.bus.link import Away, Link
from shared.wire.bus.signal import Signal

MAX_BYTES = 16 * 1024 * 1024
EXPIRES_SECONDS = 30.0
HEARTBEAT_SECONDS = 2.0
COMPLETED = ("Batch Completed", "Message Size Exceeds MaxBytes")  # how a request with a byte limit ends
SILENCE_SECONDS = 2.5 * HEARTBEAT_SECONDS


@dataclass(frozen=True)
class Delivery:
    """A delivered message and where its acknowledgement goes. `number` counts this consumer's deliveries."""

    stored: Stored
    reply: str
    number: int


class Pull:
    """One inbox and what was asked for over it."""

    def __init__(self, link: Link, stream: str, consumer: str, *, no_wait: bool = False) -> None:
        self.outstanding = 0
        self.broken = False
        self.empty = False  # with `no_wait`: the server had nothing more
        self.arrived = Signal()
        self._link = link
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._no_wait = no_wait
        self._inbox = link.new_inbox()
        self._messages: deque[Delivery] = deque()
        self._subscription: Subscription | None = None
        self._returns = link.returns
        self._heard = 0.0
        self._suspected = False

    async def __aenter__(self) -> Pull:
        self._subscription = await self._link.subscribe(self._inbox, self._on_message)
        self._returns = self._link.returns
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._subscription is not None:
            await self._link.unsubscribe(self._subscription)

    def __len__(self) -> int:
        return len(self._messages)

    def pop(self) -> Delivery | None:
        return self._messages.popleft() if self._messages else None

    async def ask(self, count: int) -> None:
        """Ask for `count` messages more, of at most 16 MB together."""
        request: dict[str, object] = {"batch": count, "max_bytes": MAX_BYTES}
        if self._no_wait:
            request["no_wait"] = True
        else:
            request["expires"] = int(EXPIRES_SECONDS * NANOSECONDS)
            request["idle_heartbeat"] = int(HEARTBEAT_SECONDS * NANOSECONDS)
        if self.outstanding == 0:
            self._heard = asyncio.get_running_loop().time()
        self.outstanding += count
        try:
            await self._link.send(self._subject, json.dumps(request).encode(), reply=self._inbox)
        except Away:
            self.broken = True

    async def wait(self, timeout_seconds: float | None = None) -> None:
        """Returns when something came, when the pull broke, or when the time is up."""
        if self._messages or self.broken or self.empty:
            return
        now = asyncio.get_running_loop().time
        patience = HEARTBEAT_SECONDS if timeout_seconds is None else min(timeout_seconds, HEARTBEAT_SECONDS)
        await self.arrived.wait(patience)
        silent = self.outstanding > 0 and now() - self._heard > SILENCE_SECONDS
        if (silent and self._suspected) or self._link.returns != self._returns:
            self.broken = True
        self._suspected = silent  # believed at the second look: this process may have been stalled itself

    async def _on_message(self, message: Msg) -> None:
        self._heard = asyncio.get_running_loop().time()
        if message.reply.startswith("$JS.ACK."):
            self.outstanding = max(self.outstanding - 1, 0)
            self._messages.append(delivery(message))
        elif not self._on_status(message.headers or {}):
            return
        self.arrived.notify()

    def _on_status(self, headers: dict[str, str]) -> bool:
        """Whether the status is one to wake up for."""
        status, text = headers.get("Status", ""), headers.get(Header.DESCRIPTION, "")
        if status == "100":
            return False
        left = headers.get("Nats-Pending-Messages", "")
        if status == "404" or (status == "408" and self._no_wait):
            self.outstanding, self.empty = 0, True
        elif (status == "408" or text in COMPLETED) and left.isdigit():
            self.outstanding = max(self.outstanding - int(left), 0)
        else:
            self.broken = True
        return True


def delivery(message: Msg) -> Delivery:
    """Read `$JS.ACK[.<domain>.<account>].<stream>.<consumer>.<deliveries>.<sequence>.<number>.<time>.<pending>[.x]`."""
    tokens = message.reply.split(".")
    at = 2 if len(tokens) == 9 else 4
    deliveries, sequence, number, time, pending = (int(token) for token in tokens[at + 2 : at + 7])
    stored = Stored(
        message.subject,
        sequence,
        message.data,
        message.headers or {},
        pending=pending,
        deliveries=deliveries,
        at=time / NANOSECONDS,
    )
    return Delivery(stored, message.reply, number)
