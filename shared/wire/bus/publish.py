"""Storing a message: retried with one message id until the server has answered, at most 16 MB on the way at once.

A time-out does not mean "not stored". Within the server's window (two minutes) the message id makes a retry harmless.
With an expected sequence a retry of one's own stored message is refused; the message right after that sequence then
tells whether it is ours.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.msg import Msg

from shared.wire.bus.api import Ack, BusError, Conflict, NotFound, Unreachable
from shared.wire.bus.jetstream import JetStream, backoff, error_of, status_of
from shared.wire.bus.link import Away, Link
from shared.wire.bus.signal import Signal

MESSAGE_ID = "Nats-Msg-Id"
EXPECTED_LAST = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_ON_SUBJECT = "Nats-Expected-Last-Subject-Sequence"
WINDOW_BYTES = 16 * 1024 * 1024
ATTEMPT_SECONDS = 5.0


class Window:
    """At most so many bytes under way; one message may always go."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._freed = Signal()

    @asynccontextmanager
    async def room(self, size: int) -> Any:
        while self._used and self._used + size > self._limit:
            await self._freed.wait()
        self._used += size
        try:
            yield
        finally:
            self._used -= size
            self._freed.notify()


class Publisher:
    """Publishes to streams over one link."""

    def __init__(self, link: Link, jetstream: JetStream) -> None:
        self._link = link
        self._jetstream = jetstream
        self._window = Window(WINDOW_BYTES)

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str,
        headers: Mapping[str, str] | None,
        expected_last_sequence: int | None,
        expected_last_subject_sequence: int | None,
        patience_seconds: float,
    ) -> Ack:
        message_id = message_id or secrets.token_hex(12)
        sent = {**(headers or {}), MESSAGE_ID: message_id}
        if expected_last_sequence is not None:
            sent[EXPECTED_LAST] = str(expected_last_sequence)
        if expected_last_subject_sequence is not None:
            sent[EXPECTED_LAST_ON_SUBJECT] = str(expected_last_subject_sequence)
        if len(data) + sum(len(k) + len(v) + 4 for k, v in sent.items()) > self._link.max_payload:
            raise BusError(f"{subject}: {len(data)} bytes are over the broker's limit of {self._link.max_payload}")
        async with self._window.room(len(data)):
            answer, attempts = await self._until_answered(subject, data, sent, patience_seconds)
        reply: dict[str, Any] = json.loads(answer.data)
        if "error" not in reply:
            return Ack(int(reply["seq"]), bool(reply.get("duplicate", False)))
        error = error_of(f"publish to {subject}", reply["error"])
        if isinstance(error, Conflict) and attempts > 1:
            expected = expected_last_sequence, expected_last_subject_sequence
            mine = await self._own(subject, message_id, *expected)
            if mine is not None:
                return Ack(mine, duplicate=True)
        raise error

    async def _until_answered(
        self, subject: str, data: bytes, headers: Mapping[str, str], patience_seconds: float
    ) -> tuple[Msg, int]:
        """The stream's answer and how often it was asked."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_seconds
        attempts = 0
        while True:
            left = deadline - loop.time()
            if left <= 0:
                raise Unreachable(f"publish to {subject}: no answer from {self._link.url} in {patience_seconds:g} s")
            if not self._link.connected:
                await self._link.wait_connected(left)
            attempts += 1
            try:
                answer = await self._link.call(
                    subject, data, headers=headers, timeout_seconds=min(ATTEMPT_SECONDS, max(left, 0.05))
                )
                if status_of(answer) != "503":
                    return answer, attempts
                await self._check_stream(subject, left)
            except Away:
                pass
            await asyncio.sleep(backoff(attempts))

    async def _check_stream(self, subject: str, patience_seconds: float) -> None:
        """Nobody took the message: no such stream, or a server that is still starting?"""
        what = f"publish to {subject}"
        found = await self._jetstream.ask("STREAM.NAMES", {"subject": subject}, what, patience_seconds=patience_seconds)
        if not found.get("streams"):
            raise NotFound(f"publish to {subject}: no stream takes it")

    async def _own(
        self, subject: str, message_id: str, expected: int | None, expected_on_subject: int | None
    ) -> int | None:
        """The sequence of our own earlier attempt, if that is what stands after the expected sequence."""
        names = await self._jetstream.stream_names(subject)
        after = expected if expected is not None else expected_on_subject
        if not names or after is None:
            return None
        query: dict[str, Any] = {"seq": after + 1}
        if expected is None:
            query["next_by_subj"] = subject
        try:
            stored = await self._jetstream.message(names[0], query)
        except NotFound:
            return None
        return stored.sequence if stored is not None and stored.headers.get(MESSAGE_ID) == message_id else None
