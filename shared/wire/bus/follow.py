"""Reading a stream from a sequence on, without acknowledgements: each message once, in order, whatever breaks.

An unnamed reader on the server (a pull consumer, no acknowledgements, in memory, gone after half a minute unused)
hands out messages; the truth is the last sequence that was yielded. When the reader is gone or skips, a new one starts
there.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from shared.wire.bus.api import BusError, Stored, Unreachable
from shared.wire.bus.jetstream import FOR_EVER, NANOSECONDS, PATIENCE_SECONDS, JetStream, backoff
from shared.wire.bus.link import Away, Link
from shared.wire.bus.pull import Delivery, Pull

BATCH = 512
UNUSED_SECONDS = 30


class Follower:
    """One reading of one stream."""

    def __init__(self, link: Link, jetstream: JetStream, stream: str, subject: str, headers_only: bool) -> None:
        self._link = link
        self._jetstream = jetstream
        self._stream = stream
        self._subject = subject
        self._headers_only = headers_only

    async def newest_per_subject(self) -> AsyncGenerator[Stored, None]:
        """The last message of each matching subject, as they stand now; again from the start after a break."""
        for attempt in itertools.count():
            name, pending = await self._create({"deliver_policy": "last_per_subject"}, PATIENCE_SECONDS)
            async with aclosing(self._hand_out(name, live=False)) as deliveries:
                async for delivery in deliveries:
                    yield delivery.stored
                    pending = delivery.stored.pending
            if pending == 0:
                return
            await asyncio.sleep(backoff(attempt))

    async def from_sequence(self, first: int, live: bool) -> AsyncGenerator[Stored, None]:
        """Every matching message from `first` on; without `live`, up to what is there now."""
        patience = FOR_EVER if live else PATIENCE_SECONDS
        info = await self._jetstream.stream_info(self._stream, patience_seconds=patience)
        end, wanted = info["state"]["last_seq"], max(first, 1)
        if info["config"]["retention"] == "workqueue":  # its only reader is its consumer: the server refuses others
            if live:
                raise BusError(f"stream {self._stream} is a work queue: it can be consumed, not followed")
            async for stored in self._one_by_one(wanted, end):
                yield stored
            return
        breaks = 0
        while live or wanted <= end:
            start = {"deliver_policy": "by_start_sequence", "opt_start_seq": wanted}
            name, pending = await self._create(start, patience)
            if not live and pending == 0:
                return
            async with aclosing(self._hand_out(name, live)) as deliveries:
                async for delivery in deliveries:
                    stored = delivery.stored
                    if not live and stored.sequence > end:
                        return
                    wanted, breaks = stored.sequence + 1, 0
                    yield stored
                    if not live and stored.pending == 0:
                        return
            breaks += 1
            await asyncio.sleep(backoff(breaks - 1))

    async def _one_by_one(self, wanted: int, end: int) -> AsyncGenerator[Stored, None]:
        while wanted <= end:
            query = {"seq": wanted, "next_by_subj": self._subject}
            stored = await self._jetstream.message(self._stream, query)
            if stored is None or stored.sequence > end:
                return
            wanted = stored.sequence + 1
            yield replace(stored, data=b"") if self._headers_only else stored

    async def _create(self, start: dict[str, Any], patience_seconds: float) -> tuple[str, int]:
        """A reader on the server: its name and how many messages wait for it."""
        name = f"follow-{secrets.token_hex(8)}"
        config: dict[str, Any] = {
            "name": name,
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": UNUSED_SECONDS * NANOSECONDS,
            "mem_storage": True,
            "num_replicas": 1,
            "headers_only": self._headers_only,
            **start,
        }
        subject = f"CONSUMER.CREATE.{self._stream}.{name}"
        if self._subject != ">" or start["deliver_policy"] == "last_per_subject":
            config["filter_subject"] = self._subject
            subject += f".{self._subject}"
        body = {"stream_name": self._stream, "config": config}
        what = f"reading stream {self._stream}"
        reply = await self._jetstream.ask(subject, body, what, patience_seconds=patience_seconds)
        return name, int(reply.get("num_pending", 0))

    async def _hand_out(self, name: str, live: bool) -> AsyncGenerator[Delivery, None]:
        """Its deliveries, as long as none is missing; without `live`, until the server has no more."""
        expected = 1
        try:
            async with Pull(self._link, self._stream, name, no_wait=not live) as pull:
                while True:
                    if pull.outstanding + len(pull) <= BATCH // 2 and not pull.empty:
                        await pull.ask(BATCH)
                    delivery = pull.pop()
                    if delivery is None:
                        if pull.broken or pull.empty:
                            return
                        await pull.wait()
                    elif delivery.number == expected:
                        expected += 1
                        yield delivery
                    else:
                        return
        finally:
            await self._delete(name)

    async def _delete(self, name: str) -> None:
        """Ask for its removal and do not wait: an unused reader goes by itself."""
        try:
            await self._link.send(f"$JS.API.CONSUMER.DELETE.{self._stream}.{name}")
        except (Away, Unreachable):
            return
