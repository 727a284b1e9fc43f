"""What a process says about itself: one log record a line on stderr, and a presence heartbeat on the bus."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from shared.wire.bus.api import Bus, BusError
from shared.wire.messages import Presence, encode
from shared.wire.topics import presence_subject

PRESENCE_SECONDS = 2.0
NOISY = ("httpx", "httpcore", "urllib3", "filelock", "fsspec")  # one line a request or a file at level info


class PlainLines(logging.Formatter):
    """`2026-01-31T12:00:00.123 INFO reward message`; a trace, where asked for, follows on lines of its own."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return f"{when}.{int(record.msecs):03d} {record.levelname} {self._service} {text}"


class JsonLines(logging.Formatter):
    """The same as an object a line, for collectors."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "at": record.created,
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def configure_logging(service: str, level: str = "info", style: str = "plain") -> None:
    """Send every record to stderr, one a line. `style` is `plain` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(service) if style == "json" else PlainLines(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)


async def heartbeat(
    bus: Bus, service: str, id: str, state: Callable[[], str], gauges: dict[str, float], detail: dict[str, Any]
) -> None:
    """Say every two seconds that this process lives, its state, its gauges and details; until cancelled."""
    started_at = time.time()
    while True:
        presence = Presence(
            service=service, id=id, host=socket.gethostname(), pid=os.getpid(), started_at=started_at, state=state(),
            gauges=dict(gauges), detail=dict(detail),
        )  # fmt: skip
        try:
            await bus.broadcast(presence_subject(service, id), encode(presence))
        except BusError as error:
            logging.getLogger(__name__).debug("presence not sent: %s", error)
        await asyncio.sleep(PRESENCE_SECONDS)
