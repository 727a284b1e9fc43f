"""All jobs in memory, from a watch of the bucket: listing 10,000 of them costs one page.

Flow: `run` follows the bucket for ever; `page` reads. A single job is read from the bucket itself, so that a client
always sees its own writes; the index only lists and finds names.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections import Counter

from gateway.errors import ApiError
from shared.wire import topics
from shared.wire.bus.api import Bus, Entry
from shared.wire.messages import JOB_ID, BadMessage, JobRecord, decode

log = logging.getLogger("gateway")

SortKey = tuple[float, str]


class JobIndex:
    """`ready` once the watch has seen every job there is."""

    def __init__(self) -> None:
        self.ready = False
        self._jobs: dict[str, JobRecord] = {}
        self._order: list[SortKey] = []  # oldest first

    async def run(self, bus: Bus) -> None:
        """Follows the bucket; ends only by cancellation."""
        async for entry in bus.bucket(topics.JOBS.name).watch():
            if entry is None:
                self.ready = True
            else:
                self.apply(entry)

    def apply(self, entry: Entry) -> None:
        if entry.data is None:
            self._forget(entry.key)
            return
        try:
            record = decode(JobRecord, entry.data)
        except BadMessage as error:
            log.error("job %s cannot be read: %s", entry.key, error)
            return
        if record.id not in self._jobs:
            insort(self._order, (record.created_at, record.id))
        self._jobs[record.id] = record

    def _forget(self, id: str) -> None:
        record = self._jobs.pop(id, None)
        if record is not None:
            del self._order[bisect_left(self._order, (record.created_at, id))]

    def __len__(self) -> int:
        return len(self._jobs)

    def states(self) -> Counter[str]:
        return Counter(record.state for record in self._jobs.values())

    def get(self, id: str) -> JobRecord | None:
        return self._jobs.get(id)

    def page(
        self, limit: int, cursor: str | None = None, state: str | None = None, name: str | None = None
    ) -> tuple[list[JobRecord], str | None]:
        """At most `limit` jobs, newest first, older than `cursor`; and the cursor of the next page, if there is one."""
        at = len(self._order) if cursor is None else bisect_left(self._order, parse_cursor(cursor))
        found: list[JobRecord] = []
        while at > 0:
            at -= 1
            record = self._jobs[self._order[at][1]]
            if (state is None or record.state == state) and (name is None or record.name == name):
                if len(found) == limit:
                    last = found[-1]
                    return found, f"{last.created_at!r}_{last.id}"
                found.append(record)
        return found, None

    def resolve(self, reference: str) -> str:
        """The id that a person means: an id, else the newest job of that name, else the only id that begins so."""
        if reference in self._jobs:
            return reference
        named = [record for record in self._jobs.values() if record.name == reference]
        if named:
            return max(named, key=lambda record: (record.created_at, record.id)).id
        begins = sorted(id for id in self._jobs if id.startswith(reference)) if reference else []
        if len(begins) == 1:
            return begins[0]
        if begins:
            shown = ", ".join(begins[:5]) + (" ..." if len(begins) > 5 else "")
            raise ApiError(409, f"{reference!r} begins {len(begins)} job ids: {shown}")
        raise ApiError(404, f"no job {reference[:80]!r}: `slipstream jobs` lists all")


def parse_cursor(cursor: str) -> SortKey:
    created, _, id = cursor.partition("_")
    try:
        at = float(created)
    except ValueError:
        at = -1.0
    if not at >= 0 or not JOB_ID.match(id):  # also false for nan
        raise ApiError(422, "cursor: not one that this address gave", [("cursor", "not one that this address gave")])
    return at, id
