"""JetStream's API as JSON requests: errors become those of `api`, and a server that is away is waited for.

The server is strict: an unknown field is an error. Only what this package needs is here.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import random
from datetime import datetime
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.wire.bus.api import BusError, Conflict, NotFound, Stored, StreamFull, Unreachable
from shared.wire.bus.link import Away, Link

CALL_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
FOR_EVER = math.inf
NANOSECONDS = 1_000_000_000

NOT_FOUND = {10014, 10037, 10059}  # consumer, message, stream
WRONG_LAST_SEQUENCE = {10071, 10164}
FULL = {10023, 10047, 10077}  # no resources, no storage, the stream's own limit


def error_of(what: str, error: dict[str, Any]) -> BusError:
    """The typed error for the server's `error` object; `what` says what was asked."""
    code, text = int(error.get("err_code", 0)), str(error.get("description", "unknown error"))
    said = f"{what}: {text}"
    if code in NOT_FOUND:
        return NotFound(said)
    if code in WRONG_LAST_SEQUENCE:
        last = text.rpartition(":")[2].strip()
        return Conflict(said, int(last) if last.isdigit() else None)
    if code in FULL:
        return StreamFull(said)
    return BusError(f"{said} ({code})")


def status_of(message: Msg) -> str:
    """The status of a message without a body that the server itself sent: `503`, `404`, ...; empty for any other."""
    return message.headers.get("Status", "") if message.headers and not message.data else ""


def backoff(attempt: int) -> float:
    """Seconds before the next try: 0.1, 0.2, 0.4 ... at most 2, with jitter."""
    return min(0.1 * 2.0 ** min(attempt, 6), 2.0) * random.uniform(0.5, 1.0)


class JetStream:
    """Requests to the API over one link."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def ask(
        self, subject: str, body: dict[str, Any] | None, what: str, *, patience_seconds: float = PATIENCE_SECONDS
    ) -> dict[str, Any]:
        """The answer to `$JS.API.<subject>`. Retries while the server is away; requests here may be repeated."""
        data = json.dumps(body).encode() if body is not None else b""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_seconds
        attempt = 0
        while True:
            try:
                await self.link.wait_connected(max(deadline - loop.time(), 0.001))
                answer = await self.link.call(f"$JS.API.{subject}", data, timeout_seconds=CALL_SECONDS)
                if status_of(answer) != "503":  # nobody answers: JetStream is still starting, or elects
                    break
            except Away:
                pass
            if loop.time() > deadline:
                raise Unreachable(f"{what}: JetStream at {self.link.url} did not answer in {patience_seconds:g} s")
            await asyncio.sleep(backoff(attempt))
            attempt += 1
        reply: dict[str, Any] = json.loads(answer.data)
        if "error" in reply:
            raise error_of(what, reply["error"])
        return reply

    async def stream_info(self, stream: str, *, patience_seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        what = f"stream {stream}"
        return await self.ask(f"STREAM.INFO.{stream}", None, what, patience_seconds=patience_seconds)

    async def consumer_info(
        self, stream: str, consumer: str, *, patience_seconds: float = PATIENCE_SECONDS
    ) -> dict[str, Any]:
        what = f"consumer {consumer} of stream {stream}"
        return await self.ask(f"CONSUMER.INFO.{stream}.{consumer}", None, what, patience_seconds=patience_seconds)

    async def stream_names(self, subject: str = "") -> list[str]:
        """All streams, or those that take `subject`."""
        names: list[str] = []
        while True:
            body: dict[str, Any] = {"offset": len(names)}
            if subject:
                body["subject"] = subject
            page = await self.ask("STREAM.NAMES", body, "stream names")
            names += page.get("streams") or []
            if len(names) >= page.get("total", 0) or not page.get("streams"):
                return names

    async def message(self, stream: str, body: dict[str, Any]) -> Stored | None:
        """The leader's answer to `MSG.GET`: what is asked of it is what was last stored."""
        try:
            reply = await self.ask(f"STREAM.MSG.GET.{stream}", body, f"message of stream {stream}")
        except NotFound:
            await self.stream_info(stream)  # no such message, or no such stream?
            return None
        message = reply["message"]
        return Stored(
            message["subject"],
            int(message["seq"]),
            base64.b64decode(message.get("data") or ""),
            headers_of(base64.b64decode(message.get("hdrs") or "")),
            at=seconds_of(message.get("time", "")),
        )


def headers_of(raw: bytes) -> dict[str, str]:
    """The header block of a stored message as a dictionary."""
    return Client._parse_header_lines(raw.partition(b"\r\n")[2]) if raw else {}


def seconds_of(time: str) -> float:
    """Seconds since the epoch of the server's RFC 3339 time (nanoseconds, UTC)."""
    if not time:
        return 0.0
    whole, _, fraction = time.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
