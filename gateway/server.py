"""The gateway's process: uvicorn around the service's life, so that it answers before and without the broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn

from gateway.app import create_app
from gateway.config import Settings
from gateway.context import Gateway
from shared.wire.bus.api import Stored
from shared.wire.service import Service, run

log = logging.getLogger("gateway")
GRACE_SECONDS = 2


class PortTaken(Exception):
    """The address cannot be listened on; the text says which and why."""


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the service's life decides when to stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(settings: Settings) -> int:
    """Run the gateway until it is told to stop; its exit status."""
    listener = listen(settings)
    gateway = Gateway(settings)

    @contextlib.asynccontextmanager
    async def answering() -> AsyncIterator[None]:
        config = uvicorn.Config(
            create_app(gateway), log_config=None, log_level="warning", access_log=False, lifespan="off",
            timeout_graceful_shutdown=GRACE_SECONDS, timeout_keep_alive=30,
        )  # fmt: skip
        server = Server(config)
        host, port = listener.getsockname()[:2]
        log.info("listening on http://%s:%d", host, port)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield
        finally:
            gateway.stopping.set()
            server.should_exit = True
            await task

    async def life(service: Service[Settings]) -> None:
        await _live(service, gateway)

    return run(life, "gateway", settings, around=answering)


async def _live(service: Service[Settings], gateway: Gateway) -> None:
    bus = service.bus

    async def hear(message: Stored) -> None:
        gateway.roster.hear(message.data)

    unlisten = await bus.listen("presence.>", hear)
    gateway.attach(bus, service.event)
    service.loop(gateway.index.run(bus), "the watch of jobs")
    await service.stopping.wait()
    gateway.stopping.set()
    await unlisten()


def listen(settings: Settings) -> socket.socket:
    """The bound socket; `PortTaken` says who is in the way."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise PortTaken(f"cannot listen on {settings.listen}: {error.strerror or error}") from error
    listener.set_inheritable(True)
    return listener
