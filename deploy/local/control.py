"""How `ps`, `down` and `scale` reach a running supervisor: one JSON line each way over a Unix socket.

The socket lies in the temporary folder and is named by a digest of the stack's home: its path may only have 107 bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class NotRunning(RuntimeError):
    """No supervisor answers for this home."""


def socket_path(home: Path) -> Path:
    name = hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"slipstream-{os.getuid()}-{name}.sock"


def ask(home: Path, request: dict[str, Any], timeout_seconds: float = 60.0) -> dict[str, Any]:
    """The supervisor's answer. Raises `NotRunning`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(timeout_seconds)
        try:
            s.connect(str(socket_path(home)))
            s.sendall(json.dumps(request).encode() + b"\n")
            with s.makefile("rb") as file:
                line = file.readline()
        except OSError as error:
            raise NotRunning(f"no stack is running for {home}") from error
    if not line:
        raise NotRunning(f"the stack for {home} ended while it was asked")
    reply: dict[str, Any] = json.loads(line)
    return reply


async def serve(home: Path, handler: Handler) -> asyncio.AbstractServer:
    """Answer requests for `home` until the server is closed. A socket that nobody answers on is replaced."""

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            reply = await handler(json.loads(line))
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError):
            return
        finally:
            writer.close()

    path = socket_path(home)
    try:
        await asyncio.to_thread(ask, home, {"do": "ping"}, 2.0)
    except NotRunning:
        path.unlink(missing_ok=True)
    else:
        raise FileExistsError(f"a stack is already running for {home}: `slipstream down` ends it")
    server = await asyncio.start_unix_server(on_client, path=str(path))
    path.chmod(0o600)
    return server
