"""Where the seconds of our step go: a timeline of each step from what the stack itself recorded.

    step event s-1 | weights served | generate | score | hand over | fetch | train | snapshot | step event s

The step events carry the trainer's own figures; when answers began, ended and were scored stands in the stored samples,
and when the batch was recorded in the ledger. So nothing is added to the stack for measuring it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.stack import PROJECT
from shared.wire import bus, topics
from shared.wire.ledger import read_ledger
from shared.wire.messages import Batched, Scored, Trajectory, decode

HOPS = ("weights served", "generate", "score", "hand over", "fetch", "train", "snapshot")


@dataclass(frozen=True)
class Batch:
    """The answers of one step, as wall-clock moments."""

    first_begun: float
    last_ended: float
    last_scored: float
    recorded: float
    prompt_tokens: int
    tokens: int


def read_batches(home: Path, job: str) -> dict[int, Batch]:
    """Step -> its answers, read from the streams of the stack in `home`. Needs a job with `retain: true`."""
    return asyncio.run(_read(_broker(home), job))


def _broker(home: Path) -> str:
    """The address of the stack's broker, as its services were told it."""
    ps = [sys.executable, "-m", "deploy.local", "ps", "--json", "--home", str(home)]
    listed = json.loads(subprocess.run(ps, cwd=PROJECT, check=True, capture_output=True).stdout)
    gateway = next(row for row in listed if row["service"].startswith("gateway"))
    return str(psutil.Process(gateway["pid"]).environ()["SLIPSTREAM_NATS_URL"])


async def _read(url: str, job: str) -> dict[int, Batch]:
    link = await bus.connect(url, name="bench")
    try:
        return {
            record.step: await _batch(link, job, record, at)
            async for _, at, record in read_ledger(link, job)
            if isinstance(record, Batched)
        }
    finally:
        await link.close()


async def _batch(link: bus.Bus, job: str, record: Batched, at: float) -> Batch:
    stored = await link.get_many(topics.scored(job).name, [sample.sequence for sample in record.samples])
    bodies = [message for message in stored if message is not None]
    made = [decode(Trajectory, decode(Scored, message.data).trajectory) for message in bodies]
    return Batch(
        first_begun=min(each.started_at for each in made),
        last_ended=max(each.finished_at for each in made),
        last_scored=max(message.at for message in bodies),
        recorded=at,
        prompt_tokens=sum(each.segments[0].length for each in made),
        tokens=sum(each.trained_tokens() for each in made),
    )


def timeline(before: dict[str, Any], event: dict[str, Any], batch: Batch) -> dict[str, float]:
    """The hops between two step events; their sum is the whole step. For staleness 0, where hops do not overlap."""
    seconds = event["seconds"]
    begun = event["at"] - seconds["fetch"] - seconds["train"] - seconds["snapshot"]
    return {
        "weights served": batch.first_begun - before["at"],
        "generate": batch.last_ended - batch.first_begun,
        "score": batch.last_scored - batch.last_ended,
        "hand over": begun - batch.last_scored,
        "fetch": seconds["fetch"],
        "train": seconds["train"],
        "snapshot": seconds["snapshot"],
    }
