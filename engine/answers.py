"""Where the decode thread's reports meet the HTTP calls that wait for them.

One `Waiter` a call, one call may have many requests. Streams are coalesced: a client that reads slowly gets the newest
state, since each chunk repeats all that came before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from engine.generate import BadRequest
from engine.loop import Report
from engine.requests import Request


class Waiter:
    """A call's requests and how far each is known to have come."""

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self._place = {request.rid: i for i, request in enumerate(requests)}
        self._counts = [0] * len(requests)
        self._open = len(requests)
        self._news: set[int] = set()
        self._event = asyncio.Event()

    def update(self, request: Request, count: int) -> bool:
        """Takes a report; says whether this was the request's last one."""
        place = self._place[request.rid]
        self._counts[place] = count
        last = request.finish is not None and count == len(request.output_ids)
        self._open -= last
        if request.stream or self._open == 0:
            self._news.add(place)
            self._event.set()
        return last

    async def done(self) -> None:
        """Returns when every request has ended."""
        while self._open:
            await self._event.wait()
            self._event.clear()

    async def changes(self) -> AsyncIterator[tuple[int, Request, int]]:
        """(place, request, count) for each piece of news until all have ended."""
        while self._open or self._news:
            await self._event.wait()
            self._event.clear()
            news, self._news = sorted(self._news), set()
            for place in news:
                yield place, self.requests[place], self._counts[place]


class Answers:
    """The running calls by request id. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._waiters: dict[str, Waiter] = {}

    def __contains__(self, rid: str) -> bool:
        return rid in self._waiters

    def __len__(self) -> int:
        return len(self._waiters)

    def open(self, requests: list[Request]) -> Waiter:
        """Registers a call's requests; refuses ids that run already."""
        seen: set[str] = set()
        for request in requests:
            if request.rid in self._waiters or request.rid in seen:
                raise BadRequest(f"Duplicate request ID detected: {request.rid}")
            seen.add(request.rid)
        waiter = Waiter(requests)
        self._waiters.update({request.rid: waiter for request in requests})
        return waiter

    def report(self, report: Report) -> list[Request]:
        """Takes the decode thread's news; gives the requests that have ended."""
        ended = []
        for request, count in report:
            waiter = self._waiters.get(request.rid)
            if waiter is not None and waiter.update(request, count):
                del self._waiters[request.rid]
                ended.append(request)
        return ended

    def forget(self, waiter: Waiter) -> list[str]:
        """Drops a call whose client has gone; gives the ids that still run."""
        left = [r.rid for r in waiter.requests if self._waiters.get(r.rid) is waiter]
        for rid in left:
            del self._waiters[rid]
        return left
