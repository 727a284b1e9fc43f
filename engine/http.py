"""The little HTTP that the engine needs, as a plain ASGI application: routes, bounded bodies, JSON, disconnects.

A framework's layers cost more than a decode step of a small model, so there are none: a route is a coroutine that gets
a `Call` and answers through it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import msgspec

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class HttpError(Exception):
    """An answer that is an error: its status and one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Call:
    """One request on the wire."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_body_bytes: int) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._max_body_bytes = max_body_bytes
        self.started = False

    def query(self, name: str) -> str | None:
        """A value from the query string."""
        values = parse_qs(self._scope["query_string"].decode("latin-1")).get(name)
        return values[-1] if values else None

    async def json(self) -> dict[str, Any]:
        """The body as a JSON object; an empty body is an empty object."""
        body = await self._body()
        if not body:
            return {}
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise HttpError(400, f"the body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise HttpError(400, "the body must be a JSON object")
        return value

    async def _body(self) -> bytes:
        limit = self._max_body_bytes
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise HttpError(400, "the client went away while sending the body")
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise HttpError(413, f"the body is larger than {limit} bytes (--max-body-mib)")
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)

    async def disconnected(self) -> None:
        """Returns when the client has gone; to be awaited after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, content_type: str, length: int | None = None) -> None:
        headers = [(b"content-type", content_type.encode())]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def part(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def reply(self, data: bytes, status: int = 200, content_type: str = "text/plain; charset=utf-8") -> None:
        await self.start(status, content_type, len(data))
        await self.part(data, more=False)

    async def reply_json(self, value: Any, status: int = 200) -> None:
        await self.reply(msgspec.json.encode(value), status, "application/json")

    async def reply_error(self, status: int, message: str) -> None:
        """Refusals of a request as SGLang words them; server errors in its other form."""
        if status < 500:
            await self.reply_json({"error": {"message": message}}, status)
        else:
            await self.reply_json({"object": "error", "message": message, "type": str(status), "code": status}, status)


Handler = Callable[[Call], Awaitable[None]]
Routes = Mapping[str, tuple[tuple[str, ...], Handler]]


class Application:
    """ASGI: finds the route, runs it, turns `HttpError` into its answer and anything else into one line and a 500."""

    def __init__(self, routes: Routes, max_body_bytes: int) -> None:
        self._routes, self._max_body_bytes = routes, max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        call = Call(scope, receive, send, self._max_body_bytes)
        methods, handler = self._routes.get(scope["path"], ((), None))
        if handler is None:
            await call.reply_json({"detail": HTTPStatus.NOT_FOUND.phrase}, 404)
        elif scope["method"] not in methods:
            await call.reply_json({"detail": HTTPStatus.METHOD_NOT_ALLOWED.phrase}, 405)
        else:
            await self._run(call, handler, scope["path"])

    async def _run(self, call: Call, handler: Handler, path: str) -> None:
        try:
            await handler(call)
        except HttpError as error:
            if not call.started:
                await call.reply_error(error.status, str(error))
        except Exception as error:  # a fault of ours must reach the log and the client, not kill the server
            logging.error("%s failed: %s: %s", path, type(error).__name__, error)
            logging.debug("", exc_info=True)
            if not call.started:
                await call.reply_error(500, f"{path} failed: {type(error).__name__}: {error}")
