"""Slots: requests in the decoder's KV cache, and one step for all of them.

A slot keeps its tokens' KV after its request has gone, so a new request copies the longest prefix that any slot holds
under the current weights: a group of answers to one prompt prefills it once. Without fixed shapes the busy slots are
kept at the front, so that a step computes no idle rows.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from engine.decoder import Decoder
from engine.requests import Request, aborted, full, stopped
from engine.sampling import Rows, draw, uniforms
from engine.weights import Weights

NOT_A_NUMBER = "the model gave logits that are not numbers (broken weights?)"


class Slots:
    """The decoder with its requests. Belongs to the decode thread."""

    def __init__(self, decoder: Decoder, eos_ids: frozenset[int]) -> None:
        self.decoder = decoder
        self.eos_ids = eos_ids
        rows = decoder.rows
        self._requests: list[Request | None] = [None] * rows
        self.count = 0
        # Row state, one entry a slot. Tensors share the arrays' memory.
        self._tokens = np.zeros(rows, np.int64)
        self._positions = np.zeros(rows, np.int64)
        self._seeds = np.zeros(rows, np.uint64)
        self._temperature = np.ones(rows, np.float32)
        self._greedy = np.zeros(rows, np.bool_)
        self._top_p = np.ones(rows, np.float32)
        self._top_k = np.full(rows, -1, np.int64)
        self._token_tensor = torch.from_numpy(self._tokens)
        self._position_tensor = torch.from_numpy(self._positions)
        # What each slot's cache holds: its ids, how many of them, and under which weights they were computed.
        self._ids: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)] * rows
        self._cached = [0] * rows
        self._weights_number = 0
        self._cached_under = [0] * rows

    @property
    def has_room(self) -> bool:
        return self.count < self.decoder.slots

    @property
    def tokens_held(self) -> int:
        return sum(len(r.prompt_ids) + len(r.output_ids) for r in self.requests())

    def requests(self) -> list[Request]:
        return [r for r in self._requests if r is not None]

    def use(self, weights: Weights) -> None:
        """Swaps the weights. What is cached stays with its requests, but is no prefix for new ones."""
        self.decoder.use(weights)
        self._weights_number += 1

    def forget(self) -> None:
        """Drops every cached prefix of a slot without a request."""
        for slot, request in enumerate(self._requests):
            if request is None:
                self._cached[slot] = 0

    def place(self, request: Request) -> int:
        """Puts a request into a free slot and fills its cache; gives how many tokens were taken from other slots."""
        slot = self._requests.index(None)
        ids = np.array(request.prompt_ids + request.output_ids, np.int64)
        wants_logits = request.returned.prompt_logprobs_from >= 0 and not request.prompt_logprobs
        self.decoder.reserve(len(request.prompt_ids) + request.params.max_new_tokens)
        tokens = torch.from_numpy(ids)
        reused = 0 if wants_logits else self._take_prefix(slot, ids)
        if reused < len(ids) - 1 or wants_logits:
            logits = self.decoder.prefill(slot, tokens[reused:-1], reused, logits=wants_logits)
            if logits is not None:
                scores = torch.log_softmax(logits, dim=-1).gather(1, tokens[1:, None])
                request.prompt_logprobs = scores[:, 0].tolist()
        room = np.zeros(len(request.prompt_ids) + request.params.max_new_tokens, np.int64)
        room[: len(ids)] = ids
        params = request.params
        self._requests[slot] = request
        self.count += 1
        self._ids[slot], self._cached[slot], self._cached_under[slot] = room, len(ids) - 1, self._weights_number
        self._tokens[slot], self._positions[slot] = ids[-1], len(ids) - 1
        self._seeds[slot] = params.seed % 2**64
        self._greedy[slot] = params.temperature == 0
        self._temperature[slot] = params.temperature or 1.0
        self._top_p[slot], self._top_k[slot] = params.top_p, params.top_k
        return reused

    def _take_prefix(self, slot: int, ids: npt.NDArray[np.int64]) -> int:
        best, source = 0, slot
        for other, held in enumerate(self._ids):
            count = min(self._cached[other], len(ids) - 1)
            if count <= best or self._cached_under[other] != self._weights_number:
                continue
            differs = held[:count] != ids[:count]
            same = int(differs.argmax()) if differs.any() else count
            if same > best:
                best, source = same, other
        if source != slot:
            self.decoder.copy(source, slot, best)
        return best

    def release(self, request: Request) -> None:
        """Frees a request's slot; its cache stays as a prefix for others."""
        slot = self._requests.index(request)
        self._requests[slot] = None
        self.count -= 1
        self._greedy[slot], self._temperature[slot], self._top_p[slot], self._top_k[slot] = False, 1.0, 1.0, -1
        if request.finish is not None and request.finish.get("message") == NOT_A_NUMBER:
            self.decoder.clear(slot)
            self._cached[slot] = 0

    # --- one step -------------------------------------------------------------------------------------------------

    def step(self) -> list[Request]:
        """Draws one token for each request and says which got one; those with a `finish` are at their end."""
        if not self.decoder.fixed:
            self._compact()
        rows = self.decoder.rows if self.decoder.fixed else self.count
        busy = [(slot, r) for slot, r in enumerate(self._requests[:rows]) if r is not None]
        if len(busy) < rows:
            self._positions[[slot for slot, r in enumerate(self._requests) if r is None]] = self.decoder.spare
        longest = max(self._cached[slot] for slot, _ in busy)
        logits = self.decoder.step(self._token_tensor[:rows], self._position_tensor[:rows], longest)
        for slot, request in busy:
            if len(request.output_ids) < request.params.min_new_tokens:
                logits[slot, sorted(request.params.stop_ids | self.eos_ids)] = -torch.inf
        settings = Rows(self._temperature[:rows], self._greedy[:rows], self._top_p[:rows], self._top_k[:rows])
        drawn = draw(
            logits,
            settings,
            uniforms(self._seeds[:rows], self._positions[:rows] + 1),
            [slot for slot, request in busy if request.returned.kept_ids],
        )
        for slot, request in busy:
            self._advance(slot, request, drawn.tokens[slot], drawn.raw[slot], drawn.behaviour[slot])
            if len(request.kept) < len(request.output_ids) and slot in drawn.kept:
                request.kept.append(drawn.kept[slot])
        return [request for _, request in busy]

    def _advance(self, slot: int, request: Request, token: int, raw: float, behaviour: float) -> None:
        if math.isnan(raw):
            request.finish = aborted(NOT_A_NUMBER, 500, "InternalServerError")
            return
        request.output_ids.append(token)
        request.raw.append(raw)
        request.behaviour.append(behaviour)
        params, count = request.params, len(request.output_ids)
        position = self._cached[slot] + 1
        self._cached[slot] = position
        self._ids[slot][position] = self._tokens[slot] = token
        self._positions[slot] = position
        found = request.stop_strings.found(request.output_ids) if request.stop_strings is not None else None
        if found is not None:
            request.finish = stopped(found)
        elif not params.ignore_eos and (token in self.eos_ids or token in params.stop_ids):
            request.finish = stopped(token)
        elif count >= params.max_new_tokens:
            request.finish = full(params.max_new_tokens)

    def _compact(self) -> None:
        """Moves requests from the back into free slots at the front."""
        for slot in range(self.count):
            if self._requests[slot] is not None:
                continue
            last = max(i for i, r in enumerate(self._requests) if r is not None)
            self.decoder.copy(last, slot, self._cached[last])
            self._requests[slot], self._requests[last] = self._requests[last], None
            for values in (
                self._tokens, self._positions, self._seeds, self._temperature, self._greedy, self._top_p, self._top_k,
            ):  # fmt: skip
                values[slot] = values[last]
            self._ids[slot], self._cached[slot] = self._ids[last], self._cached[last]
            self._cached_under[slot] = self._cached_under[last]
