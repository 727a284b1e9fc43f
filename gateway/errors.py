"""Every refusal over HTTP: a status, one line, and for a job file the path and message of each problem."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from shared.wire.bus.api import BusError

log = logging.getLogger("gateway")


@dataclass
class ApiError(Exception):
    """Raised anywhere below a route; becomes `{"error": text}` and, for a job file, `"errors"`."""

    status: int
    text: str
    errors: Sequence[tuple[str, str]] = field(default_factory=tuple)

    def __str__(self) -> str:
        return self.text


def one_line(text: object) -> str:
    return " ".join(str(text).split())


def reply(status: int, text: object, errors: Sequence[tuple[str, str]] = ()) -> JSONResponse:
    body: dict[str, object] = {"error": one_line(text)}
    if errors:
        body["errors"] = [{"path": path, "message": one_line(message)} for path, message in errors]
    return JSONResponse(body, status_code=status)


def install(app: FastAPI) -> None:
    """Turns every exception of a request into one line."""

    @app.exception_handler(ApiError)
    async def on_api_error(_: Request, error: ApiError) -> JSONResponse:
        return reply(error.status, error.text, error.errors)

    @app.exception_handler(RequestValidationError)
    async def on_bad_request(_: Request, error: RequestValidationError) -> JSONResponse:
        errors = [(".".join(str(part) for part in e["loc"]), str(e["msg"])) for e in error.errors()]
        text = "; ".join(f"{path}: {message}" for path, message in errors)
        return reply(422, text, errors)

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> JSONResponse:
        text = f"no such address: {request.url.path} (see /docs)" if error.status_code == 404 else error.detail
        return reply(error.status_code, text)

    @app.exception_handler(BusError)
    async def on_bus(_: Request, error: BusError) -> JSONResponse:
        return reply(503, f"the message broker did not answer: {error}")

    @app.exception_handler(Exception)
    async def on_anything(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed: %s: %s", request.method, request.url.path, type(error).__name__, error)
        log.debug("where", exc_info=error)
        return reply(500, f"the gateway failed: {type(error).__name__}: {error} (its log says more at level debug)")
