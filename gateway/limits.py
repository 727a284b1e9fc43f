"""Refuses a request body over the limit before anything reads it whole: by its announced length, else by counting."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import reply


class BodyTooLong(Exception):
    """More bytes came than are allowed."""


class BodyLimit:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self.max_bytes:
            await self._refuse(scope, receive, send)
            return
        received, answered = 0, False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_bytes:
                raise BodyTooLong
            return message

        async def noted(message: Message) -> None:
            nonlocal answered
            answered = answered or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, counted, noted)
        except BodyTooLong:
            if not answered:
                await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        text = f"the request body is over the limit of {self.max_bytes} bytes: put data into files, not into the job"
        response = reply(413, text)
        response.headers["connection"] = "close"
        await response(scope, receive, send)
