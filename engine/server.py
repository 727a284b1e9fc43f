"""The endpoints: SGLang 0.5.23's paths and JSON names over the decode thread.

consumes  HTTP calls; reports of the decode thread
produces  answers; calls to the decode thread, each done between two steps
stalls    /generate while the loop is paused; /update_weights_from_disk, when not paused, until earlier requests end
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from engine.answers import Answers, Waiter
from engine.architecture import Architecture, ModelError, read_architecture
from engine.generate import BadRequest, Batch, Limits, WrongSchema, answer, parse_generate
from engine.http import Call, HttpError, Routes
from engine.loop import Ended, Loop, Report
from engine.metrics import Metrics
from engine.requests import Request
from engine.settings import Settings
from engine.slots import Slots
from engine.text import Text
from engine.weights import Weights, load_weights

T = TypeVar("T")
PAUSE_MODES = ("abort", "retract", "in_place")
UPDATED = "Succeeded to update model weights."
NOT_FLUSHED = (
    "Weights were updated, but the cache was not flushed because requests are still running or queued. "
    "Retract or finish them, then call /flush_cache."
)


class Server:
    """Holds no state but who waits for what, the loaded path and the announced version."""

    def __init__(self, settings: Settings, slots: Slots, text: Text | None, dtype: torch.dtype) -> None:
        self._settings = settings
        self._architecture: Architecture = slots.decoder.weights.architecture
        self._dtype = dtype
        self._text = text
        self._limits = Limits(slots.decoder.length, self._architecture.vocab, text)
        self._model_path = str(settings.model_path)
        self._version = settings.weight_version
        self._started = time.time()
        self._answers = Answers()
        self._updating = asyncio.Lock()
        self._session = False
        self._events = asyncio.get_running_loop()
        self.failed: asyncio.Future[str] = self._events.create_future()
        self.loop = Loop(slots, settings.weight_version, self._deliver, self._failing)
        self._metrics = Metrics(self.loop)

    def routes(self) -> Routes:
        get, post, either = ("GET",), ("POST",), ("GET", "POST")
        return {
            "/generate": (("POST", "PUT"), self.generate),
            "/abort_request": (post, self.abort_request),
            "/pause_generation": (post, self.pause_generation),
            "/continue_generation": (post, self.continue_generation),
            "/begin_weight_update": (post, self.begin_weight_update),
            "/end_weight_update": (post, self.end_weight_update),
            "/update_weights_from_disk": (post, self.update_weights_from_disk),
            "/update_weight_version": (post, self.update_weight_version),
            "/flush_cache": (either, self.flush_cache),
            "/get_weights_by_name": (either, self.get_weights_by_name),
            "/weights_checker": (either, self.weights_checker),
            "/ready": (get, self.ready),
            "/health": (get, self.ready),
            "/model_info": (get, self.model_info),
            "/server_info": (get, self.server_info),
            "/v1/loads": (get, self.loads),
            "/metrics": (get, self.metrics),
        }

    # --- the decode thread's side: called there, handed to the event loop -------------------------------------------

    def _deliver(self, report: Report) -> None:
        self._events.call_soon_threadsafe(self._on_report, report)

    def _on_report(self, report: Report) -> None:
        for request in self._answers.report(report):
            self._metrics.ended(request)

    def _failing(self, message: str) -> None:
        self._events.call_soon_threadsafe(self._on_failure, message)

    def _on_failure(self, message: str) -> None:
        if not self.failed.done():
            self.failed.set_result(message)

    # --- generation -------------------------------------------------------------------------------------------------

    async def generate(self, call: Call) -> None:
        body = await call.json()
        streaming = body.get("stream") is True
        try:
            batch = parse_generate(body, self._limits)
            waiter = self._answers.open(batch.requests)
        except WrongSchema as error:
            await call.reply_json({"error": str(error)}, 400)
            return
        except BadRequest as error:
            if not streaming:
                raise HttpError(400, str(error)) from None
            refusal = {"message": str(error), "type": "invalid_request_error", "code": 400, "retryable": False}
            await call.start(200, "text/event-stream")
            await call.part(_event({"error": refusal}) + b"data: [DONE]\n\n", more=False)
            return
        gone = asyncio.ensure_future(call.disconnected())
        work = asyncio.ensure_future(self._serve(call, batch, waiter))
        try:
            await asyncio.wait((gone, work), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            gone.cancel()
            work.cancel()
            left = frozenset(self._answers.forget(waiter))
            if left:
                self.loop.call(lambda: self.loop.drop(left))

    async def _serve(self, call: Call, batch: Batch, waiter: Waiter) -> None:
        await self._result(self.loop.submit(batch.requests))
        if not batch.stream:
            await waiter.done()
            found = [self._answer(request) for request in batch.requests]
            await call.reply_json(found[0] if batch.single else found)
            return
        await call.start(200, "text/event-stream")
        async for place, request, count in waiter.changes():
            index = None if batch.single else place
            await call.part(_event(answer(request, count, self._text, index)), more=True)
        await call.part(b"data: [DONE]\n\n", more=False)

    def _answer(self, request: Request) -> dict[str, Any]:
        finish = request.finish or {}
        if finish.get("status_code"):
            raise HttpError(finish["status_code"], finish["message"])
        return answer(request, len(request.output_ids), self._text)

    async def abort_request(self, call: Call) -> None:
        body = await call.json()
        rid, everything = body.get("rid") or "", bool(body.get("abort_all"))
        if not isinstance(rid, str):
            raise HttpError(400, "rid must be a string")
        # As in SGLang: an unknown id is ignored; a known one also ends every request whose id starts with it.
        if everything or rid in self._answers:
            await self._do(lambda: self.loop.abort(rid, everything=everything))
        await call.reply(b"")

    async def pause_generation(self, call: Call) -> None:
        mode = (await call.json()).get("mode", "abort")
        if mode not in PAUSE_MODES:
            raise HttpError(400, f"mode must be one of {', '.join(PAUSE_MODES)}, got {mode!r}")
        await self._do(lambda: self.loop.pause(mode))
        await call.reply_json({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, call: Call) -> None:
        await call.json()
        await self._do(self.loop.resume)
        await call.reply_json({"message": "Generation continued successfully.", "status": "ok"})

    async def flush_cache(self, call: Call) -> None:
        try:
            patience = float(call.query("timeout") or 0)
        except ValueError:
            raise HttpError(400, "timeout must be a number of seconds") from None
        deadline = time.monotonic() + patience
        while not (flushed := await self._do(self.loop.flush)) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        if flushed:
            await call.reply(b"Cache flushed.\n")
        else:
            await call.reply(b"Flush cache failed: requests are running or waiting.\n", 400)

    async def _do(self, function: Callable[[], T]) -> T:
        return await self._result(self.loop.call(function))

    async def _result(self, future: Future[T]) -> T:
        try:
            return await asyncio.wrap_future(future)
        except Ended as error:
            raise HttpError(503, str(error)) from None

    # --- weights ----------------------------------------------------------------------------------------------------

    async def begin_weight_update(self, call: Call) -> None:
        await call.json()
        if self._session:
            message = "a weight-update session is already open; call end_weight_update() first"
            await call.reply_json({"success": False, "message": message}, 400)
            return
        self._session = True
        await call.reply_json({"success": True, "message": "Success"})

    async def end_weight_update(self, call: Call) -> None:
        await call.json()
        if not self._session:
            message = "no weight-update session is open; call begin_weight_update() first"
            await call.reply_json({"success": False, "message": message}, 400)
            return
        self._session = False
        await call.reply_json({"success": True, "message": "Success"})

    async def update_weights_from_disk(self, call: Call) -> None:
        body = await call.json()
        path, version = body.get("model_path"), body.get("weight_version")
        if not isinstance(path, str) or not path:
            raise HttpError(400, "model_path must be a folder's path")
        if version is not None and not isinstance(version, str):
            raise HttpError(400, "weight_version must be a string")
        flush = body.get("flush_cache", True) is not False
        if body.get("abort_all_requests"):
            await self._do(lambda: self.loop.abort("", everything=True))
        async with self._updating:
            success, message = await self._load(Path(path), version, flush)
        content = {"success": success, "message": message, "num_paused_requests": 0}
        await call.reply_json(content, 200 if success else 400)

    async def _load(self, path: Path, version: str | None, flush: bool) -> tuple[bool, str]:
        try:
            weights = await asyncio.to_thread(self._read, path)
        except ModelError as error:
            return False, f"Failed to update weights: {error}."
        flushed = await self._result(self.loop.swap(weights, version, flush=flush))
        if flush and not flushed:
            return False, NOT_FLUSHED
        logging.info("weights %s from %s", self._version if version is None else version, path)
        self._model_path = str(path)
        if version is None:
            return True, UPDATED
        self._version = version
        return True, f"{UPDATED} Weight version updated to {version}."

    def _read(self, path: Path) -> Weights:
        ours = self._architecture
        found = replace(read_architecture(path), context_length=ours.context_length)
        if found != ours:
            old, new = asdict(ours), asdict(found)
            changed = [f"{name} {new[name]} instead of {old[name]}" for name in new if new[name] != old[name]]
            raise ModelError(f"{path} has another shape than the model being served: {', '.join(changed)}")
        return load_weights(path, ours, self._dtype)

    async def update_weight_version(self, call: Call) -> None:
        body = await call.json()
        version = body.get("new_version")
        if not isinstance(version, str):
            raise HttpError(400, "new_version must be a string")
        if body.get("abort_all_requests", True):
            await self._do(lambda: self.loop.abort("", everything=True))
        await self._do(lambda: self.loop.rename(version))
        self._version = version
        message = f"Weight version updated to {version}"
        await call.reply_json({"success": True, "message": message, "new_version": version})

    async def get_weights_by_name(self, call: Call) -> None:
        body = await call.json()
        name, size = body.get("name"), body.get("truncate_size", 100)
        if not isinstance(size, int) or size < 0:
            raise HttpError(400, "truncate_size must be a count")
        tensor = dict(self.loop.slots.decoder.weights.named()).get(str(name))
        if tensor is None:
            raise HttpError(400, f"the model has no tensor {name}")
        await call.reply_json(tensor[:size].float().tolist())

    async def weights_checker(self, call: Call) -> None:
        body = await call.json()
        if body.get("action", "checksum") != "checksum":
            raise HttpError(400, "this engine knows the action checksum only")
        checksums = await asyncio.to_thread(self.loop.slots.decoder.weights.checksums)
        skip = body.get("skip_tensor_list") or []
        kept = {name: value for name, value in sorted(checksums.items()) if not any(s in name for s in skip)}
        total = hashlib.sha256("".join(name + value for name, value in kept.items()).encode()).hexdigest()
        ranks = [{"checksums": kept, "per_gpu_checksum": total, "parallelism_info": []}]
        await call.reply_json({"success": True, "message": "Success", "ranks": ranks, "per_engine_checksum": total})

    # --- state ------------------------------------------------------------------------------------------------------

    async def ready(self, call: Call) -> None:
        await call.reply(b"", 503 if self.failed.done() else 200)

    async def model_info(self, call: Call) -> None:
        await call.reply_json(
            {
                "model_path": self._model_path,
                "served_model_name": str(self._settings.model_path),
                "tokenizer_path": str(self._settings.model_path),
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": self._version,
                "load_format": "auto",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": self._architecture.name.removesuffix("ForCausalLM").lower(),
                "architectures": [self._architecture.name],
            }
        )

    async def server_info(self, call: Call) -> None:
        settings = {
            key: str(value) if isinstance(value, Path) else value for key, value in vars(self._settings).items()
        }
        dtype = str(self._dtype).removeprefix("torch.")
        state = self._metrics.load() | {"paused": self.loop.paused, "weight_version": self.loop.version}
        await call.reply_json(
            settings
            | {
                "dtype": dtype,
                "device": "cpu",
                "context_length": self._limits.context_length,
                "max_total_num_tokens": state["max_total_num_tokens"],
                "skip_tokenizer_init": self._text is None,
                "threads": torch.get_num_threads(),
                "started": self._started,
                "internal_states": [state],
                "version": "slipstream-engine",
            }
        )

    async def loads(self, call: Call) -> None:
        await call.reply_json(self._metrics.loads())

    async def metrics(self, call: Call) -> None:
        await call.reply(self._metrics.text(), content_type="text/plain; version=0.0.4; charset=utf-8")


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
