"""`up` itself: the supervisor's process, from the first start to the last goodbye."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.local import control
from deploy.local.logs import follow
from deploy.local.supervisor import StackError, Supervisor, load


def run_stack(home: Path, compose: Path, scale: Mapping[str, int], port: int | None, *, quiet: bool) -> int:
    """Run the stack until it is told to stop; the exit code of `slipstream up`."""
    try:
        return asyncio.run(_run(home.resolve(), compose.resolve(), scale, port, quiet))
    except KeyboardInterrupt:
        return 130


async def _run(home: Path, compose: Path, scale: Mapping[str, int], port: int | None, quiet: bool) -> int:
    variables = {**os.environ, **({"SLIPSTREAM_PORT": str(port)} if port else {})}
    try:
        stack = load(compose, variables, scale)
        for name in ("run", "logs", "volumes"):
            (home / name).mkdir(parents=True, exist_ok=True)
    except (StackError, OSError) as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return 2

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)

    supervisor = Supervisor(stack, compose.parent, home, say=lambda text: print(f"slipstream: {text}", flush=True))
    is_up = False

    async def on_request(request: dict[str, Any]) -> dict[str, Any]:
        match request.get("do"):
            case "ping":
                return {"up": is_up}
            case "ps":
                return {"processes": supervisor.status()}
            case "scale":
                try:
                    await supervisor.scale(request["scale"])
                except StackError as error:
                    return {"error": str(error)}
                return {}
            case "down":
                stop.set()
                await ended.wait()
                return {}
            case other:
                return {"error": f"unknown request {other!r}"}

    ended = asyncio.Event()
    try:
        server = await control.serve(home, on_request)
    except FileExistsError as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return 2

    shown = None if quiet else asyncio.create_task(follow(home / "logs", sys.stdout))
    code = 0
    starting = asyncio.create_task(supervisor.up())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not stop.is_set():
            try:
                starting.result()
            except StackError as error:
                print(f"slipstream: {error}", file=sys.stderr)
                code = 2 if "is taken" in str(error) else 1
            else:
                is_up = True
                gateway = next((p for s in stack.services.values() for p in s.ports), None)
                where = f" at http://{gateway.host}:{gateway.host_port}" if gateway else ""
                print(f"slipstream: up{where}; logs in {home / 'logs'}", flush=True)
                await stop.wait()
                print("slipstream: stopping", flush=True)
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await supervisor.down()
        if shown is not None:
            shown.cancel()
            await asyncio.gather(shown, return_exceptions=True)
        ended.set()
        await asyncio.sleep(0)  # lets the request that asked for the end be answered
        server.close()
        with contextlib.suppress(FileNotFoundError):
            control.socket_path(home).unlink()
    return code
