"""An engine that someone else runs: used, left as it is, and never believed without proof."""

import asyncio
import contextlib
import http.server
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.rollout.engine_client import EngineClient
from services.rollout.errors import EngineGone, EngineUnusable, NotUpdated
from shared.policy.resolve import resolve_model
from shared.wire.messages import Version

Eventually = Callable[..., Awaitable[None]]
SHORT = {
    "rid": "r" * 32, "input_ids": [1, 5], "sampling_params": {"max_new_tokens": 4}, "return_logprob": True,
    "stream": True,
}  # fmt: skip


@pytest.fixture
def engine(models: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    folder = resolve_model("tiny", models).path
    command = [sys.executable, "-m", "engine", "--model-path", str(folder), "--port", "0"]
    command += ["--dtype", "float32", "--weight-version", "0.1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().decode().split()[-1], process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        process.stdout.close()


async def test_an_adopted_engine_gets_the_jobs_weights_and_is_left_running(
    rollouts: Any, played: Any, eventually: Eventually, engine: Any, tmp_path: Path, models: Path
) -> None:
    url, process = engine
    started, server = rollouts
    async with played(server.url, "tiny") as (scheduler,):
        async with httpx.AsyncClient() as outside:  # a worker that was killed in the middle of an update
            await outside.post(f"{url}/pause_generation", json={"mode": "in_place"})
        scheduler.offer(6)
        worker = started.start(SLIPSTREAM_ROLLOUT_ENGINE_URL=url)
        await eventually(lambda: len(scheduler.ended) == 6)
        assert not [ended.error for ended in scheduler.ended.values() if ended.error]
        await scheduler.announce(tmp_path, "tiny", Version(1, 1), models)
        await eventually(lambda: scheduler.asks[-1].version == "1.1")
        worker.send_signal(signal.SIGTERM)
        await eventually(lambda: worker.poll() == 0, 12)
        assert process.poll() is None


async def test_an_update_proves_its_version_or_fails(engine: Any, models: Path, tmp_path: Path) -> None:
    url, _ = engine
    client = EngineClient(url)
    folder = resolve_model("tiny", models).path
    try:
        await client.update_from_disk(folder, "4.1", in_flight=False)
        assert await client.held_version() == "4.1"
        with pytest.raises(NotUpdated):
            await client.update_from_disk(tmp_path / "nowhere", "5.1", in_flight=True)
        assert await client.held_version() == "4.1"
        answer = await client.generate(SHORT, lambda _: None)
        assert len(answer.token_ids) <= 4, "the pause was undone although the update failed"
    finally:
        await client.close()


async def test_a_pause_is_undone_when_its_owner_is_cancelled(engine: Any) -> None:
    url, _ = engine
    client = EngineClient(url)

    async def holds_a_pause(entered: asyncio.Event) -> None:
        async with client.paused():
            entered.set()
            await asyncio.sleep(600)

    try:
        entered = asyncio.Event()
        task = asyncio.create_task(holds_a_pause(entered))
        await entered.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert await asyncio.wait_for(client.generate(SHORT, lambda _: None), 20)
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("bodies", "says"),
    [
        ({}, "has no /model_info"),
        ({"/model_info": b"{}"}, "does not tell its weight_version"),
        ({"/model_info": b'{"weight_version": "default"}'}, "has no /server_info"),
        (
            {"/model_info": b'{"weight_version": "v"}', "/server_info": b'{"version": "0.4.9", "model_path": "m"}'},
            "is SGLang 0.4.9; 0.5.23 or newer is needed",
        ),
        (
            {
                "/model_info": b'{"weight_version": "v"}',
                "/server_info": b'{"version": "0.5.23", "model_path": "m", "incremental_streaming_output": true}',
            },
            "start it without",
        ),
    ],
)
async def test_what_is_no_usable_engine_is_told_clearly(bodies: dict[str, bytes], says: str) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = bodies.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"not found")

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = EngineClient(f"http://127.0.0.1:{server.server_port}")
    try:
        with pytest.raises(EngineUnusable) as raised:
            await client.probe()
        assert says in str(raised.value) and "\n" not in str(raised.value)
    finally:
        await client.close()
        server.shutdown()
        server.server_close()


async def test_only_a_refused_flush_means_that_the_weights_are_new_all_the_same(tmp_path: Path) -> None:
    """SGLang changes the weights and answers 400 then, without moving the version: the update is repeated."""
    asked: list[dict[str, Any]] = []
    held = ["3.1"]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body)
            if body["flush_cache"]:
                reply = {"success": False, "message": "Weights were updated, but the cache was not flushed because ..."}
            else:
                reply = {"success": True, "message": "ok"}
                held[0] = body["weight_version"]
            self.answer(400 if body["flush_cache"] else 200, reply)

        def do_GET(self) -> None:
            self.answer(200, {"weight_version": held[0]})

        def answer(self, status: int, body: dict[str, Any]) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = EngineClient(f"http://127.0.0.1:{server.server_port}")
    try:
        await client.update_from_disk(tmp_path, "4.1", in_flight=False)
        assert [body["flush_cache"] for body in asked] == [True, False]
        assert await client.held_version() == "4.1"
    finally:
        await client.close()
        server.shutdown()
        server.server_close()


async def test_nothing_at_the_address_is_an_engine_that_is_gone() -> None:
    client = EngineClient("http://127.0.0.1:9")
    try:
        assert not await client.ready()
        with pytest.raises(EngineGone):
            await client.probe()
        with pytest.raises(EngineGone):
            await client.generate({"input_ids": [1]}, lambda _: None)
    finally:
        await client.close()
