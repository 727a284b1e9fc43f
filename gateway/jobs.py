"""One job: found by what a person calls it, and moved between states by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway.errors import ApiError
from gateway.index import JobIndex
from shared.wire.bus.api import Bus, NotFound
from shared.wire.jobs import change_job, get_job
from shared.wire.messages import ENDED_STATES, JOB_ID, JobRecord

# action -> where it leads, the states it starts from, and the states in which it is done already
ACTIONS: dict[str, tuple[str, frozenset[str], frozenset[str]]] = {
    "pause": ("pausing", frozenset({"running"}), frozenset({"pausing", "paused"})),
    "resume": ("running", frozenset({"pausing", "paused", "failed"}), frozenset({"running"})),
    "cancel": ("cancelling", frozenset({"running", "pausing", "paused"}), frozenset({"cancelling", "cancelled"})),
    "delete": (
        "deleting", frozenset({"running", "pausing", "paused", "cancelling", *ENDED_STATES}), frozenset({"deleting"}),
    ),
}  # fmt: skip


async def find_job(bus: Bus, index: JobIndex, reference: str) -> JobRecord:
    """The job of this id, this name (the newest), or the only id that begins so."""
    record = await get_job(bus, reference) if JOB_ID.match(reference) else None
    if record is None:
        record = await get_job(bus, index.resolve(reference))
    if record is None:
        raise ApiError(404, f"no job {reference[:80]!r}: `slipstream jobs` lists all")
    return record


def acting(action: str) -> Callable[[JobRecord], JobRecord | None]:
    """The change that `action` makes; None where it is done already; `ApiError` 409 where it cannot be. Pure."""
    to, possible, done = ACTIONS[action]

    def change(record: JobRecord) -> JobRecord | None:
        if record.state in done:
            return None
        if record.state not in possible:
            raise ApiError(409, f"{record.id} is {record.state}: it cannot {action}")
        return msgspec.structs.replace(record, state=to, reason="")

    return change


async def act(bus: Bus, id: str, action: str) -> tuple[JobRecord, bool]:
    """The job after `action`, and whether that changed it."""
    changed = False
    decide = acting(action)

    def change(record: JobRecord) -> JobRecord | None:
        nonlocal changed
        result = decide(record)
        changed = result is not None
        return result

    try:
        return await change_job(bus, id, change), changed
    except NotFound as error:
        raise ApiError(404, f"no job {id}") from error
