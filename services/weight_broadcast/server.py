"""The file server: `GET /<job>/<version>/<file>` with ranges, `GET /<job>/<version>.json`, `GET /healthz`.

A path is never put together from what a client sent: job and version are parsed, and a file is served only if its
name stands in the version's list.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from services.weight_broadcast.store import Store
from shared.wire.messages import JOB_ID, BadMessage, Version

CLOSE_SECONDS = 2


class BigChunks(FileResponse):
    chunk_size = 1024 * 1024


class FileServer(uvicorn.Server):
    """uvicorn without its signal handlers: the service's life cycle has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(address: tuple[str, int]) -> socket.socket:
    """A listening socket. Raises OSError with the address in its text."""
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(128)
    except OSError as error:
        made.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return made


def server(store: Store) -> FileServer:
    return FileServer(
        uvicorn.Config(
            application(store),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
    )


def application(store: Store) -> Starlette:
    async def file(request: Request) -> Response:
        found = _named(request)
        files = await asyncio.to_thread(store.file_list, *found) if found else None
        if found is None or files is None or request.path_params["file"] not in {entry.name for entry in files}:
            return _not_here(request)
        folder = await asyncio.to_thread(store.folder, *found, files)
        if folder is None:
            return _not_here(request)
        path = folder / request.path_params["file"]
        try:
            found_file = path.stat()
        except OSError:
            return _not_here(request)
        return BigChunks(path, media_type="application/octet-stream", stat_result=found_file)

    async def file_list(request: Request) -> Response:
        found = _named(request)
        files = await asyncio.to_thread(store.file_list, *found) if found else None
        if files is None:
            return _not_here(request)
        return Response(msgspec.json.encode(files), media_type="application/json")

    async def healthy(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    return Starlette(
        routes=[
            Route("/healthz", healthy),
            Route("/{job}/{version}.json", file_list),
            Route("/{job}/{version}/{file}", file),
        ]
    )


def _named(request: Request) -> tuple[str, Version] | None:
    job = request.path_params["job"]
    try:
        version = Version.parse(request.path_params["version"])
    except BadMessage:
        return None
    return (job, version) if JOB_ID.fullmatch(job) else None


def _not_here(request: Request) -> Response:
    return PlainTextResponse(f"{request.url.path} is not here; take the newest announcement\n", status_code=404)
