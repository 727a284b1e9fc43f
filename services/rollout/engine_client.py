"""The client of SGLang's HTTP API. It does not know which engine answers.

Rules that hold for every engine:
- request ids have one fixed length, since an engine aborts by prefix;
- generation streams, so that progress is seen and an abort keeps its tokens;
- a pause is always undone, whatever happened in between;
- an update that answers 400 has not happened, except when only the flush of the cache was refused: the weights are new
  then but the version is not, so the update is repeated without the flush;
- a version is reported only after the engine itself has said it.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from services.rollout import answer as answers
from services.rollout.answer import Answer
from services.rollout.errors import BadAnswer, EngineError, EngineGone, EngineRefused, EngineUnusable, NotUpdated

OLDEST_SGLANG = (0, 5, 23)
CONTROL_SECONDS, UPDATE_SECONDS = 10.0, 600.0
PROGRESS = re.compile(rb'"completion_tokens":\s*(\d+)')
FLUSH_REFUSED = "cache was not flushed"


@dataclass(frozen=True)
class EngineFacts:
    """What the engine says of itself."""

    version: str
    model_path: str


def new_rid() -> str:
    """A request id: 32 hexadecimal digits, so that none is the beginning of another."""
    return secrets.token_hex(16)


class EngineClient:
    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        timeout = httpx.Timeout(CONTROL_SECONDS, pool=None)
        self._http = httpx.AsyncClient(base_url=self.url, limits=limits, timeout=timeout, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    # --- what it is -----------------------------------------------------------------------------------------------

    async def ready(self, within_seconds: float = CONTROL_SECONDS) -> bool:
        """Whether the engine serves now."""
        try:
            return (await self._http.get("/ready", timeout=within_seconds)).status_code == 200
        except httpx.HTTPError:
            return False

    async def probe(self) -> EngineFacts:
        """What answers at the url; `EngineUnusable` when it is not an engine that this client can use."""
        facts = await self._facts()
        server = await self._server_info()
        number = re.match(r"(\d+)\.(\d+)\.(\d+)", str(server.get("version", "")))
        if number is not None and "model_path" in server and tuple(map(int, number.groups())) < OLDEST_SGLANG:
            oldest = ".".join(map(str, OLDEST_SGLANG))
            raise EngineUnusable(f"the engine at {self.url} is SGLang {number[0]}; {oldest} or newer is needed")
        if server.get("incremental_streaming_output"):
            raise EngineUnusable(f"the engine at {self.url} runs with --incremental-streaming-output; start it without")
        return facts

    async def held_version(self) -> str:
        """The version of the weights that the engine says it holds."""
        return (await self._facts()).version

    async def _facts(self) -> EngineFacts:
        try:
            info = await self._call("GET", "/model_info")
        except EngineRefused as error:
            raise EngineUnusable(
                f"the engine at {self.url} has no /model_info ({error}): SGLang 0.5.23 or newer, or the built-in engine"
            ) from error
        if "weight_version" not in info:
            raise EngineUnusable(f"the engine at {self.url} does not tell its weight_version in /model_info")
        return EngineFacts(version=str(info["weight_version"]), model_path=str(info.get("model_path", "")))

    async def _server_info(self) -> dict[str, Any]:
        try:
            return await self._call("GET", "/server_info")
        except EngineRefused as error:
            raise EngineUnusable(f"the engine at {self.url} has no /server_info ({error})") from error

    # --- generation -----------------------------------------------------------------------------------------------

    async def generate(self, body: dict[str, Any], on_progress: Callable[[int], None]) -> Answer:
        """The whole answer to `body` (a streaming /generate). `on_progress` is told the tokens so far.

        Raises `EngineGone` when the connection ends before the answer does, `EngineRefused`, `Cut` or `BadAnswer`.
        """
        last = b""
        try:
            timeout = httpx.Timeout(CONTROL_SECONDS, read=None, pool=None)
            async with self._http.stream("POST", "/generate", json=body, timeout=timeout) as response:
                if response.status_code != 200:
                    raise EngineRefused(f"the engine refused: {_reason(await response.aread())}")
                async for event in _events(response):
                    if event == b"[DONE]":
                        break
                    last = event
                    if (found := PROGRESS.search(event)) is not None:
                        on_progress(int(found[1]))
                else:
                    raise EngineGone(f"the engine at {self.url} ended the connection in the middle of an answer")
        except httpx.HTTPError as error:
            raise EngineGone(f"the engine at {self.url} is gone: {type(error).__name__}") from error
        return answers.read(last, cuts=bool(body.get("return_sampling_mask")))

    async def abort(self, rid: str) -> None:
        """End a request; one that the engine does not know is no error."""
        await self._call("POST", "/abort_request", {"rid": rid, "abort_all": False}, empty=True)

    # --- weights --------------------------------------------------------------------------------------------------

    async def update_from_disk(self, folder: Path, version: str, *, in_flight: bool) -> None:
        """Load `folder` as `version` and prove it.

        `in_flight`: requests are running. They are held between two tokens, keep their cache, and go on with the new
        weights. Otherwise the cache is flushed, since nobody needs it. /update_weights_from_disk is the one update
        that needs no /begin_weight_update around it.
        """
        if in_flight:
            async with self.paused():
                await self._update(folder, version, flush=False)
        else:
            await self._update(folder, version, flush=True)
        held = await self.held_version()
        if held != version:
            raise NotUpdated(f"the engine at {self.url} holds version {held!r} after an update to {version}")

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Generation stands still inside. It goes on afterwards, come what may."""
        try:
            await self._call("POST", "/pause_generation", {"mode": "in_place"}, empty=True)
            yield
        finally:
            await asyncio.shield(self.resume())

    async def resume(self) -> None:
        """Let generation go on; harmless when it is not paused."""
        for attempt in range(3):
            try:
                await self._call("POST", "/continue_generation", {}, empty=True)
                return
            except EngineError:
                if attempt == 2:
                    raise
                await asyncio.sleep(0.1)

    async def _update(self, folder: Path, version: str, *, flush: bool) -> None:
        body = {"model_path": str(folder), "weight_version": version, "flush_cache": flush, "abort_all_requests": False}
        try:
            reply = await self._call("POST", "/update_weights_from_disk", body, seconds=UPDATE_SECONDS)
        except EngineRefused as error:
            if FLUSH_REFUSED in str(error) and flush:
                await self._update(folder, version, flush=False)
                return
            raise NotUpdated(f"the engine at {self.url} did not load {folder}: {error}") from error
        if reply.get("success") is not True:
            raise NotUpdated(f"the engine at {self.url} did not load {folder}: {answers.said(reply.get('message'))}")

    # --- plumbing -------------------------------------------------------------------------------------------------

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, seconds: float = CONTROL_SECONDS,
        empty: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """One request; its JSON object, or {} when `empty` answers are fine."""
        try:
            response = await self._http.request(method, path, json=body, timeout=httpx.Timeout(seconds, pool=None))
        except httpx.TimeoutException as error:
            raise EngineError(f"the engine at {self.url} did not answer {path} in {seconds:g} s") from error
        except httpx.HTTPError as error:
            raise EngineGone(f"the engine at {self.url} is gone: {type(error).__name__} at {path}") from error
        if response.status_code >= 400:
            raise EngineRefused(f"{response.status_code} at {path}: {_reason(response.content)}")
        if empty:
            return {}
        try:
            reply = response.json()
        except ValueError as error:
            raise BadAnswer(f"the engine's answer to {path} is not JSON") from error
        if not isinstance(reply, dict):
            raise BadAnswer(f"the engine's answer to {path} is not an object")
        return reply


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """The payloads of server-sent events, whole."""
    buffer = bytearray()
    searched = 0
    async for chunk in response.aiter_bytes():
        buffer += chunk
        while (end := buffer.find(b"\n\n", searched)) >= 0:
            event = bytes(buffer[:end]).strip()
            del buffer[: end + 2]
            searched = 0
            if event.startswith(b"data:"):
                yield event[5:].strip()
        searched = max(0, len(buffer) - 1)


def _reason(content: bytes) -> str:
    """An error body in one line: JSON with `message` or `error`, else the text itself."""
    try:
        body = json.loads(content)
    except ValueError:
        return answers.said(content.decode("utf-8", "replace"))
    if isinstance(body, dict):
        return answers.said(body.get("error") or body.get("message") or body.get("detail"))
    return answers.said(body)
