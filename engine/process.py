"""The process around the engine: load, bind, serve, end.

The port is bound before the model is loaded, so that a taken port is told at once; it listens when the model is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import uvicorn

from engine.architecture import ModelError, read_architecture, stop_ids
from engine.decoder import Decoder
from engine.http import Application
from engine.probe import settle
from engine.server import Server
from engine.settings import Settings
from engine.slots import Slots
from engine.text import Text, load_text
from engine.weights import load_weights

# Decoding answers for other threads: at Python's default of 5 ms an HTTP call could hold up every operator of a step.
SWITCH_SECONDS = 0.0005
GRACE_SECONDS = 1
PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


class StartError(Exception):
    """The engine cannot start; the text is the one-line reason."""


class _Http(uvicorn.Server):
    """uvicorn without its signal handling: ours ends the requests first, and the exit code is 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(settings: Settings) -> int:
    """Runs the engine to its end; gives the exit code."""
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s engine %(message)s"
    )
    # Until the server has handlers of its own: end at once, without a stack trace.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _end_with_parent()
    _keep_freed_memory()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        with _bind(settings) as listener:
            slots, text, dtype = _load(settings)
            return _serve_forever(settings, listener, slots, text, dtype)
    except (StartError, ModelError) as error:
        print(f"engine: {error}", file=sys.stderr)
        return 2


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _keep_freed_memory() -> None:
    """Tells glibc not to give a step's buffers back: each step would fault them in again, a tenth of its time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)  # threads' own arenas are capped at 64 MiB, and give back what is larger
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(M_TRIM_THRESHOLD, 256 * 2**20)


def _bind(settings: Settings) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise StartError(f"cannot listen on {settings.host} port {settings.port}: {error.strerror}") from None
    return listener


def choose_dtype(name: str) -> torch.dtype:
    """`auto` is bfloat16 where the CPU multiplies it, else float32."""
    if name == "auto":
        able = torch.cpu.get_capabilities()
        return torch.bfloat16 if able.get("avx512_bf16") or able.get("amx_bf16") else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def _load(settings: Settings) -> tuple[Slots, Text | None, torch.dtype]:
    folder: Path = settings.model_path
    architecture = read_architecture(folder)
    length = settings.context_length or architecture.context_length
    if length > architecture.context_length:
        raise StartError(f"--context-length {length} is over the model's {architecture.context_length}")
    dtype = choose_dtype(settings.dtype)
    text = load_text(folder)
    eos_ids = stop_ids(folder) | (frozenset() if text is None or text.eos_id is None else {text.eos_id})
    with torch.inference_mode():
        weights = load_weights(folder, architecture, dtype)
        decoder = Decoder(weights, settings.max_running_requests, length, fixed=settings.deterministic)
        if settings.deterministic:
            logging.info("deterministic: %s", settle(decoder))
    logging.info(
        "%s from %s as %s, %d slots of %d tokens, %d threads", architecture.name, folder,
        str(dtype).removeprefix("torch."), settings.max_running_requests, length, torch.get_num_threads(),
    )  # fmt: skip
    return Slots(decoder, eos_ids), text, dtype


def _serve_forever(
    settings: Settings, listener: socket.socket, slots: Slots, text: Text | None, dtype: torch.dtype
) -> int:
    """Serves on `listener` until a signal or a failure of the decode thread."""
    return asyncio.run(_serve(settings, listener, slots, text, dtype))


async def _serve(
    settings: Settings, listener: socket.socket, slots: Slots, text: Text | None, dtype: torch.dtype
) -> int:
    server = Server(settings, slots, text, dtype)
    app = Application(server.routes(), settings.max_body_mib * 2**20)
    config = uvicorn.Config(
        app, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=60,
    )  # fmt: skip
    http = _Http(config)
    server.loop.start()
    ending = asyncio.Event()
    events = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        events.add_signal_handler(number, ending.set)
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    watch: list[asyncio.Future[Any]] = [asyncio.ensure_future(ending.wait()), server.failed, serving]
    host, port = listener.getsockname()[:2]
    listener.listen(config.backlog)
    print(f"listening on http://{host}:{port}", flush=True)
    await asyncio.wait(watch, return_when=asyncio.FIRST_COMPLETED)
    failure = server.failed.result() if server.failed.done() else ""
    if failure:
        print(f"engine: {failure}", file=sys.stderr)
    await asyncio.to_thread(server.loop.stop, GRACE_SECONDS / 2)
    http.should_exit = True
    await asyncio.wait([serving], timeout=GRACE_SECONDS + 0.5)
    return 1 if failure else 0
