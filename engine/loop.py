"""The decode thread: which request is in which slot, and one decode step after another.

Everything that changes the engine's state happens here, between two steps: requests are admitted, aborted, retracted,
weights are swapped. Others hand in functions (`call`) and get futures; finished and streaming requests are reported
once a step through `deliver`.

Order between steps: calls, a weight swap if one is due, admission, compaction, then the step. Nothing runs while
paused, except calls and swaps. A swap asked for while not paused waits until what was submitted before it is done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from engine.requests import Request, aborted, full
from engine.slots import Slots
from engine.weights import Weights

T = TypeVar("T")
ENDING = "the engine is ending"
Report = list[tuple[Request, int]]


class Ended(RuntimeError):
    """The decode thread runs no more; the text says why."""


@dataclass
class Swap:
    """New weights on their way in; `done` gives whether the cache was flushed (None: not asked)."""

    weights: Weights
    version: str | None
    flush: bool
    done: Future[bool | None]


@dataclass
class Counters:
    """Totals since the start, for /metrics and /v1/loads."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    retracted: int = 0
    steps: int = 0
    step_seconds: float = 0.0


@dataclass
class _Call(Generic[T]):
    """A function to be run in the decode thread, and where its result goes."""

    function: Callable[[], T]
    future: Future[T]

    def run(self) -> None:
        try:
            self.future.set_result(self.function())
        except Exception as error:  # handed to whoever waits
            self.future.set_exception(error)


class Loop:
    """Owns the slots. Public methods without a leading comment may be called from any thread."""

    def __init__(
        self, slots: Slots, version: str, deliver: Callable[[Report], None], failing: Callable[[str], None]
    ) -> None:
        self.slots = slots
        self.version = version
        self.counters = Counters()
        self.paused = False
        self.waiting: deque[Request] = deque()
        self._held: deque[Request] = deque()  # arrived behind a swap that waits for what came before
        self._swap: Swap | None = None
        self._deliver, self._failing = deliver, failing
        self._calls: deque[_Call[Any]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._ended = ""
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)

    # --- from any thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """Aborts everything and ends the thread, if a step ends within the time."""

        def halt() -> None:
            self.abort("", everything=True)
            self._stopping = True

        self.call(halt)
        self._thread.join(timeout_seconds)

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Runs `function` in the decode thread between two steps."""
        future: Future[T] = Future()

        with self._wake:
            if self._ended:
                future.set_exception(Ended(self._ended))
                return future
            self._calls.append(_Call(function, future))
            self._wake.notify()
        return future

    def submit(self, requests: list[Request]) -> Future[None]:
        return self.call(lambda: (self.waiting if self._swap is None else self._held).extend(requests))

    def swap(self, weights: Weights, version: str | None, *, flush: bool) -> Future[bool | None]:
        """Replaces the weights: at once when paused, else when all earlier requests are done."""
        done: Future[bool | None] = Future()

        def ask() -> None:
            if self._swap is not None:
                done.set_exception(RuntimeError("another weight update is still waiting"))
                return
            self._swap = Swap(weights, version, flush, done)

        self.call(ask)
        return done

    # --- calls: run inside the decode thread, through `call` ----------------------------------------------------------

    def abort(self, prefix: str, *, everything: bool = False) -> None:
        """Ends every request whose id starts with `prefix`, with the tokens it has."""
        self._abort(lambda request: everything or request.rid.startswith(prefix))

    def drop(self, rids: frozenset[str]) -> None:
        """Ends the requests of a client that has gone."""
        self._abort(lambda request: request.rid in rids)

    def _abort(self, hit: Callable[[Request], bool]) -> None:
        ended: Report = []
        for request in filter(hit, self.slots.requests()):
            self.slots.release(request)
            ended.append(self._finish(request))
        for queue in (self.waiting, self._held):
            for request in list(filter(hit, queue)):
                queue.remove(request)
                ended.append(self._finish(request))
        self.counters.aborted += len(ended)
        if ended:
            self._deliver(ended)

    def pause(self, mode: str) -> None:
        """Stops decoding. `abort` ends all requests, `retract` sends them back to the queue, `in_place` keeps them."""
        self.paused = True
        if mode == "abort":
            self.abort("", everything=True)
        elif mode == "retract":
            running = sorted(self.slots.requests(), key=lambda r: r.created)
            for request in running:
                self.slots.release(request)
                request.retractions += 1
            self.counters.retracted += len(running)
            self.waiting.extendleft(reversed(running))

    def resume(self) -> None:
        self.paused = False

    def flush(self) -> bool:
        """Forgets all cached prefixes; refused while requests run, or wait unpaused."""
        if self.slots.count or (self.waiting and not self.paused):
            return False
        self.slots.forget()
        return True

    def rename(self, version: str) -> None:
        """Gives the weights in use another name."""
        for request in self.slots.requests():
            request.note_version(version)
        for request in (*self.waiting, *self._held):
            if request.output_ids:
                request.note_version(version)
        self.version = version

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while not self._stopping:
                    self._take_calls()
                    self._swap_if_due()
                    if self.paused or self._stopping:
                        continue
                    self._admit()
                    if self.slots.count:
                        self._step()
            self._end(ENDING)
        except Exception as error:  # nobody joins this thread: the server and its clients must learn of its end
            logging.debug("decode loop", exc_info=True)
            self._end(f"the decode loop failed: {type(error).__name__}: {error}")
            self._failing(self._ended)

    def _end(self, reason: str) -> None:
        """Refuses what is still to be called, ends every request."""
        with self._wake:
            self._ended = reason
            calls, self._calls = self._calls, deque()
        report: Report = []
        for request in (*self.slots.requests(), *self.waiting, *self._held):
            request.finish = aborted(reason, 500, "InternalServerError")
            report.append(self._finish(request))
        self._deliver(report)
        if self._swap is not None:
            self._swap.done.set_exception(Ended(reason))
        for call in calls:
            call.future.set_exception(Ended(reason))

    def _idle(self) -> bool:
        return self._swap is None and (self.paused or not (self.waiting or self.slots.count))

    def _take_calls(self) -> None:
        with self._wake:
            while not self._calls and self._idle():
                self._wake.wait()
            calls, self._calls = self._calls, deque()
        for call in calls:
            call.run()

    def _swap_if_due(self) -> None:
        swap = self._swap
        if swap is None:
            return
        if not self.paused and (self.waiting or self.slots.count):
            return
        self.slots.use(swap.weights)
        if swap.version is not None:
            self.rename(swap.version)
        flushed = self.flush() if swap.flush else None
        self._swap = None
        self.waiting.extend(self._held)
        self._held.clear()
        swap.done.set_result(flushed)

    def _admit(self) -> None:
        while self.waiting and self.slots.has_room:
            request = self.waiting.popleft()
            request.note_version(self.version)
            first = not request.output_ids and not request.retractions
            reused = self.slots.place(request)
            if request.params.max_new_tokens == 0:
                request.finish = full(0)
                self.slots.release(request)
                self._deliver([self._finish(request)])
            if first:
                request.cached_tokens = reused
                self.counters.prompt_tokens += len(request.prompt_ids)
                self.counters.cached_tokens += reused
            # A long queue of prompts must not hold back aborts and pauses.
            if self._calls:
                return

    def _step(self) -> None:
        began = time.perf_counter()
        report: Report = []
        stepped = self.slots.step()
        for request in stepped:
            count = len(request.output_ids)
            if request.finish is not None:
                self.slots.release(request)
                report.append(self._finish(request))
            elif request.stream and (count == 1 or count % request.params.stream_interval == 0):
                report.append((request, count))
        if report:
            self._deliver(report)
        self.counters.generation_tokens += len(stepped)
        self.counters.steps += 1
        self.counters.step_seconds += time.perf_counter() - began

    def _finish(self, request: Request) -> tuple[Request, int]:
        if request.finish is None:
            request.finish = aborted()
        request.finished = time.perf_counter()
        self.counters.finished += 1
        return request, len(request.output_ids)
