"""Bodies over the inline limit: put in chunks under the job before the message that points to them, read back whole.

The chunks stand in the job's object stream as `objects.<job>.<sha256>.<n>`; the message carries a header instead of
the body. A body is written again rather than looked for: that makes it young, so that a sweep leaves it alone.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from shared.wire.bus.api import Ack, BusError, NotFound, Stored
from shared.wire.bus.subjects import job_of
from shared.wire.topics import objects, scored, trajectories

POINTER = "Slipstream-Object"
CHUNK_BYTES = 512 * 1024
INLINE_BYTES = 1024 * 1024
CHUNKS_AT_ONCE = 8

Put = Callable[[str, bytes], Awaitable[Ack]]
Read = Callable[[str, str], Awaitable[Stored | None]]


def pointer_of(data: bytes) -> str:
    """`<sha256> <size>`: all that is needed to read it back and to prove that it is whole."""
    return f"{hashlib.sha256(data).hexdigest()} {len(data)}"


def chunk_subject(job: str, sha256: str, number: int) -> str:
    return f"objects.{job}.{sha256}.{number}"


async def put(store: Put, subject: str, data: bytes) -> str:
    """Store `data` under the job of `subject`; the pointer for the message's header."""
    pointer = pointer_of(data)
    sha256 = pointer.split()[0]
    job = job_of(subject)
    chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    storing = [
        asyncio.ensure_future(store(chunk_subject(job, sha256, number), chunk)) for number, chunk in enumerate(chunks)
    ]
    try:
        await asyncio.gather(*storing)
    finally:
        for task in storing:
            task.cancel()
    return pointer


async def whole(read: Read, stored: Stored) -> Stored:
    """`stored` with its body, wherever that lies. `BusError` when the object is missing or damaged."""
    pointer = stored.headers.get(POINTER)
    if pointer is None:
        return stored
    sha256, size = pointer.split()[0], int(pointer.split()[1])
    job = job_of(stored.subject)
    count = -(-size // CHUNK_BYTES)
    room = asyncio.Semaphore(CHUNKS_AT_ONCE)

    async def chunk(number: int) -> bytes:
        async with room:
            found = await read(objects(job).name, chunk_subject(job, sha256, number))
        return found.data if found is not None else b""

    try:
        data = b"".join(await asyncio.gather(*(chunk(number) for number in range(count))))
    except NotFound:
        data = b""
    if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
        raise BusError(f"{stored.subject} at {stored.sequence}: its object {sha256[:12]} is missing or damaged")
    headers = {name: value for name, value in stored.headers.items() if name != POINTER}
    return replace(stored, data=data, headers=headers)


async def sweep(
    follow: Callable[[str], AsyncIterator[Stored]],
    purge: Callable[[str, str, int], Awaitable[None]],
    job: str,
    born_before: float,
) -> int:
    """Delete what is older than `born_before` and has no message that points to it; how many objects that were.

    Old objects are listed before the pointers are read, and only what was listed is deleted: one that is put again
    meanwhile has newer sequences.
    """
    last: dict[str, int] = {}
    young: set[str] = set()
    async for chunk in follow(objects(job).name):
        sha256 = chunk.subject.split(".")[2]
        last[sha256] = max(last.get(sha256, 0), chunk.sequence)
        if chunk.at >= born_before:
            young.add(sha256)
    pointed: set[str] = set()
    for stream in (trajectories(job), scored(job)):
        async for message in follow(stream.name):
            if POINTER in message.headers:
                pointed.add(message.headers[POINTER].split()[0])
    swept = [sha256 for sha256 in last if sha256 not in young and sha256 not in pointed]
    for sha256 in swept:
        await purge(objects(job).name, f"objects.{job}.{sha256}.*", last[sha256])
    return len(swept)
