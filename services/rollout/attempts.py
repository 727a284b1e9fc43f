"""The samples that are being generated now: one task each, from lease to stored trajectory.

    generate (the engine streams) --> publish trajectory.<job> (acknowledged: finished) --> report `ended`

A failure is reported and never becomes a sample. A trajectory that is finished is published whatever happens around it;
while the broker is away or the stream is full, it waits here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection

from services.rollout.engine import Engine
from services.rollout.engine_client import EngineClient, new_rid
from services.rollout.errors import EngineError, EngineGone
from services.rollout.generate import request, trajectory
from services.rollout.leases import LeaseBook, key_of
from services.rollout.meters import Meters
from shared.wire import topics
from shared.wire.bus import StreamFull, Unreachable
from shared.wire.bus.api import Bus, BusError
from shared.wire.messages import BadMessage, Lease, Trajectory, body_headers, encode, message_id

log = logging.getLogger("rollout")
ENGINE_DIED = "engine died"
FULL_STREAM_SECONDS = 0.5
ABORT_SECONDS = 1.0  # closing the connection ends a request too


class Attempts:
    """`on_end` is called whenever an attempt is over."""

    def __init__(
        self, *, bus: Bus, engine: Engine, book: LeaseBook, worker: str, meters: Meters, on_end: Callable[[], None],
        tasks: asyncio.TaskGroup,
    ) -> None:  # fmt: skip
        self._bus, self._engine, self._book, self._worker, self._meters = bus, engine, book, worker, meters
        self._on_end, self._group = on_end, tasks
        self._generating: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._publishing: dict[str, asyncio.Task[None]] = {}

    def start(self, lease: Lease) -> None:
        key, rid = key_of(lease), new_rid()
        self._generating[key] = rid, self._group.create_task(self._run(key, lease, rid), name=f"sample {key}")

    async def stop(self, keys: Collection[str]) -> None:
        """Abort what is being generated among `keys`. Whoever calls has said in the book what becomes of them."""
        found = [self._generating.pop(key) for key in keys if key in self._generating]
        for _, task in found:
            task.cancel()
        with contextlib.suppress(EngineError, TimeoutError):
            client = self._engine.client
            async with asyncio.timeout(ABORT_SECONDS):
                await asyncio.gather(*(self._abort(client, rid) for rid, _ in found))

    def fail_all(self, error: str) -> None:
        """The engine is gone, and with it everything that was being generated."""
        for key, (_, task) in list(self._generating.items()):
            self._book.end(key, error)
            self._meters.failures += 1
            task.cancel()
        self._generating.clear()
        self._on_end()

    async def return_all(self, reason: str, patience_seconds: float) -> None:
        """Give back what is not finished, without blame; what is finished gets a while to be stored."""
        keys = list(self._generating)
        for key in keys:
            self._book.end(key, reason, counts=False)
        await self.stop(keys)
        if self._publishing:
            await asyncio.wait(self._publishing.values(), timeout=patience_seconds)
        for key in self._publishing:
            self._book.end(key, f"{reason}, and the broker did not store its trajectory", counts=False)
        self.stop_publishing()

    def stop_publishing(self) -> None:
        for task in self._publishing.values():
            task.cancel()

    async def _abort(self, client: EngineClient, rid: str) -> None:
        with contextlib.suppress(EngineError):
            await client.abort(rid)

    async def _run(self, key: str, lease: Lease, rid: str) -> None:
        try:
            made = await self._generate(key, lease, rid)
            if made is not None:
                _, self._publishing[key] = self._generating.pop(key)
                await self._publish(made)
                self._book.end(key)
                self._meters.samples += 1
        finally:
            self._generating.pop(key, None)
            self._publishing.pop(key, None)
            self._on_end()

    async def _generate(self, key: str, lease: Lease, rid: str) -> Trajectory | None:
        """The trajectory; None when there is none, which the book says then."""
        started_at = time.time()

        def progressed(tokens: int) -> None:
            self._meters.drew(self._book.progress(key, tokens), time.monotonic())

        try:
            answer = await self._engine.client.generate(request(lease, rid), progressed)
            progressed(len(answer.token_ids))
            return trajectory(lease, answer, worker=self._worker, started_at=started_at, finished_at=time.time())
        except EngineGone as error:
            log.debug("%s: %s", key, error)
            self._fail(key, ENGINE_DIED)
        except (EngineError, BadMessage) as error:
            self._fail(key, str(error))
        return None

    def _fail(self, key: str, error: str) -> None:
        if key in self._book.held:
            log.warning("%s failed: %s", key, error)
            self._meters.failures += 1
            self._book.end(key, error)

    async def _publish(self, made: Trajectory) -> None:
        """Until it is stored. Only a stream that is gone ends it: then so is the job."""
        body, told = encode(made), False
        while True:
            try:
                await self._bus.publish(
                    topics.trajectory_subject(made.key), body,
                    message_id=message_id(made.sample, made.attempt), headers=body_headers(made),
                )  # fmt: skip
                return
            except (StreamFull, Unreachable) as error:
                if not told:
                    log.warning("%s waits to be stored: %s", made.sample, error)
                    told = True
                await asyncio.sleep(FULL_STREAM_SECONDS)
            except BusError as error:
                log.warning("%s cannot be stored: %s", made.sample, error)
                return
