"""Samples a second through reward, replay buffer and a trainer that only acknowledges, 2,560 tokens a sample.

Ours:  a publisher -> trajectory stream -> the real reward process -> scored stream -> the real replay-buffer process,
       which records batches -> a reader that asks for batches, fetches their bodies and records them as trained.
Rival: the same bytes over the same number of hops with bare nats-py: a publisher -> stream -> a process that pulls,
       publishes and acknowledges -> stream -> a process that pulls and acknowledges. No ledger, no schema, no scores.

One nats-server with the shipped configuration (every write synced) for each run; the two take turns.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import nats
import numpy as np
from nats.js.api import ConsumerConfig, RetentionPolicy

from benchmarks.stack import PROJECT
from benchmarks.table import publish, spread
from deploy.local.process import die_with_parent, executable
from shared.job.spec import JobSpec
from shared.wire import bus, jobs, messages, topics
from shared.wire.ledger import Ledger

RUNS = 5
GROUPS, GROUP_SIZE, GROUPS_PER_STEP = 128, 8, 8
SAMPLES = GROUPS * GROUP_SIZE
PROMPT_TOKENS, ANSWER_TOKENS = 512, 2048
IN_FLIGHT = 32
JOB = "hops-bench"


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """A nats-server with the shipped configuration; its URL."""
    environment = {
        **os.environ,
        "SLIPSTREAM_NATS_LISTEN": "127.0.0.1:-1",
        "SLIPSTREAM_NATS_HTTP": "127.0.0.1:-1",
        "SLIPSTREAM_NATS_STORE": str(folder / "store"),
    }
    command = [executable("nats-server"), "-c", "deploy/nats.conf", "--ports_file_dir", str(folder)]
    process = subprocess.Popen(
        command, cwd=PROJECT, env=environment, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent
    )
    try:
        ports = folder / f"nats-server_{process.pid}.ports"
        deadline = time.monotonic() + 10
        while not (ports.exists() and ports.read_text().endswith("}")):
            if time.monotonic() > deadline:
                raise RuntimeError("nats-server did not come up")
            time.sleep(0.02)
        yield json.loads(ports.read_text())["nats"][0]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def children(*commands: list[str], url: str) -> Iterator[None]:
    environment = {**os.environ, "SLIPSTREAM_NATS_URL": url, "SLIPSTREAM_LOG_LEVEL": "warning"}
    started = [
        subprocess.Popen([sys.executable, *c], cwd=PROJECT, env=environment, preexec_fn=die_with_parent)
        for c in commands
    ]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def trajectory(group: int, index: int) -> messages.Trajectory:
    """A sample of 512 prompt and 2,048 answer tokens with both log-probability columns."""

    def segment(role: str, n: int, mask: int) -> messages.Segment:
        column = np.full(n, -1.0 if mask else np.nan, "<f4").tobytes()
        return messages.Segment(
            role=role,
            token_ids=np.arange(n, dtype="<i4").tobytes(),
            mask=bytes([mask]) * n,
            columns={"raw": column, "behaviour": column} if mask else {},
            spans=[messages.Span(0, n, "0.1")] if mask else [],
        )

    return messages.Trajectory(
        sample=messages.SampleKey(JOB, group, index).id,
        attempt=messages.Attempt(1, group * GROUP_SIZE + index + 1),
        segments=[segment("user", PROMPT_TOKENS, 0), segment("assistant", ANSWER_TOKENS, 1)],
        sampling=messages.Sampling(),
        finish_reason="stop",
        text="42",
        worker="bench",
        started_at=0.0,
        finished_at=0.0,
        digests=messages.Digests(),
        row={"question": "6 x 7", "answer": "42"},
    )


async def ours(url: str) -> float:
    spec = JobSpec.model_validate(
        {
            "name": "hops",
            "model": "tiny",
            "data": {"reasoning_gym": "chain_sum"},
            "reward": [{"name": "right", "kind": "exact"}],
            "algorithm": {
                "steps": GROUPS // GROUPS_PER_STEP,
                "group_size": GROUP_SIZE,
                "groups_per_step": GROUPS_PER_STEP,
                "staleness": 64,
            },
        }
    )
    link = await bus.connect(url, name="bench")
    try:
        await link.declare(topics.SHARED_STREAMS, topics.BUCKETS)
        await link.declare(topics.job_streams(JOB))
        now = time.time()
        record = messages.JobRecord(
            id=JOB,
            name="hops",
            spec=spec.model_dump(mode="json"),
            digest="",
            state="running",
            created_at=now,
            updated_at=now,
        )
        scheduler = Ledger(link, JOB, "scheduler", "bench", lambda sequence, record: None)
        await scheduler.open()
        for group in range(GROUPS):
            issued = messages.Issued(epoch=1, group=group, row=group, row_digest="", n=GROUP_SIZE, version_step=0)
            await scheduler.append(lambda issued=issued: issued)
        trainer = Ledger(link, JOB, "trainer", "bench", lambda sequence, record: None)
        await trainer.open()
        await jobs.create_job(link, record)
        await until_served(link, trainer.epoch)

        bodies = [trajectory(group, index) for group in range(GROUPS) for index in range(GROUP_SIZE)]
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for part in range(IN_FLIGHT):
                tasks.create_task(publish_all(link, bodies[part::IN_FLIGHT]))
            tasks.create_task(train_all(link, trainer))
        return SAMPLES / (time.perf_counter() - begin)
    finally:
        await link.close()


async def until_served(link: bus.Bus, epoch: int) -> None:
    """Waits until the replay buffer holds the job, so that its start is not measured."""
    deadline = time.monotonic() + 30
    while True:
        try:
            await link.request(topics.batch_subject(JOB), ask(epoch, 1), timeout_seconds=10.0)
            return
        except bus.NoResponders:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


def ask(epoch: int, step: int) -> bytes:
    return messages.encode(messages.AskBatch(trainer_epoch=epoch, step=step))


async def publish_all(link: bus.Bus, bodies: list[messages.Trajectory]) -> None:
    for body in bodies:
        await link.publish(
            topics.trajectory_subject(body.key),
            messages.encode(body),
            message_id=messages.message_id(body.sample, body.attempt),
            headers=messages.body_headers(body),
        )


async def train_all(link: bus.Bus, trainer: Ledger) -> None:
    """Asks for every step, fetches and unpacks the bodies, and says that the step is trained."""
    stream = topics.scored(JOB).name
    for step in range(1, GROUPS // GROUPS_PER_STEP + 1):
        while True:
            answer = await link.request(topics.batch_subject(JOB), ask(trainer.epoch, step), timeout_seconds=10.0)
            reply = messages.decode(messages.BatchReply, answer)
            if reply.status == "ready":
                break
        stored = await link.get(topics.ledger(JOB).name, sequence=reply.sequence)
        assert stored is not None
        batch = messages.decode_record(stored.data)
        assert isinstance(batch, messages.Batched)
        for body in await link.get_many(stream, [sample.sequence for sample in batch.samples]):
            assert body is not None
            messages.decode(messages.Scored, body.data)
        trained = messages.Trained(
            epoch=trainer.epoch,
            first=step,
            last=step,
            digest=messages.batch_digest([batch]),
            checkpoint=f"{step}.{trainer.epoch}",
            oldest_kept_step=0,
        )
        await trainer.append(lambda record=trained: record)


async def rival_streams(url: str) -> None:
    async with bare(url) as (_, js):
        await js.add_stream(name="a", subjects=["a.>"], retention=RetentionPolicy.WORK_QUEUE)
        await js.add_stream(name="b", subjects=["b.>"], retention=RetentionPolicy.WORK_QUEUE)
        for stream in ("a", "b"):
            await js.add_consumer(stream, ConsumerConfig(durable_name="c", max_ack_pending=1024))


async def rival(url: str) -> float:
    async with bare(url) as (link, js):
        bodies = [messages.encode(trajectory(g, i)) for g in range(GROUPS) for i in range(GROUP_SIZE)]
        ready, done = [await link.subscribe(subject) for subject in ("ready.*", "done")]

        async def publish_part(part: int) -> None:
            for number in range(part, SAMPLES, IN_FLIGHT):
                await js.publish(f"a.{number}", bodies[number], headers={"Nats-Msg-Id": str(number)})

        for _ in ("middle", "end"):
            await ready.next_msg(timeout=30)
        begin = time.perf_counter()
        await asyncio.gather(*(publish_part(part) for part in range(IN_FLIGHT)))
        await done.next_msg(timeout=300)
        return SAMPLES / (time.perf_counter() - begin)


@asynccontextmanager
async def bare(url: str) -> AsyncIterator[tuple[nats.NATS, nats.js.JetStreamContext]]:
    link = await nats.connect(url)
    try:
        yield link, link.jetstream()
    finally:
        await link.close()


async def rival_middle(url: str) -> None:
    """Pull, publish, acknowledge."""
    async with bare(url) as (link, js):
        pull = await js.pull_subscribe_bind(consumer="c", stream="a")
        await link.publish("ready.middle")

        async def hand_on(message: nats.aio.msg.Msg) -> None:
            number = message.subject.rpartition(".")[2]
            await js.publish(f"b.{number}", message.data, headers={"Nats-Msg-Id": number})
            await message.ack()

        handled = 0
        while handled < SAMPLES:
            found = await fetch(pull)
            await asyncio.gather(*(hand_on(message) for message in found))
            handled += len(found)


async def rival_end(url: str) -> None:
    """Pull, unpack, acknowledge."""
    async with bare(url) as (link, js):
        pull = await js.pull_subscribe_bind(consumer="c", stream="b")
        await link.publish("ready.end")
        handled = 0
        while handled < SAMPLES:
            found = await fetch(pull)
            for message in found:
                messages.decode(messages.Trajectory, message.data)
                await message.ack()
            handled += len(found)
        await link.publish("done")


async def fetch(pull: nats.js.JetStreamContext.PullSubscription) -> list[nats.aio.msg.Msg]:
    try:
        return await pull.fetch(IN_FLIGHT, timeout=5)
    except TimeoutError:
        return []


def ours_once(url: str) -> float:
    import uvloop

    with children(["-m", "services.reward"], ["-m", "services.replay_buffer"], url=url):
        return uvloop.run(ours(url))


def rival_once(url: str) -> float:
    import uvloop

    uvloop.run(rival_streams(url))

    async def measured() -> float:
        running = asyncio.create_task(rival(url))
        await asyncio.sleep(0)
        with children(["-m", "benchmarks.hops", "middle", url], ["-m", "benchmarks.hops", "end", url], url=url):
            return await running

    return uvloop.run(measured())


def main() -> None:
    rates: dict[str, list[float]] = {"ours": [], "rival": []}
    for _ in range(RUNS):
        for side, once in (("ours", ours_once), ("rival", rival_once)):
            with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as url:
                rates[side].append(once(url))
    ratios = [a / b for a, b in zip(rates["ours"], rates["rival"], strict=True)]
    rows = [
        ["Slipstream: reward, replay buffer, ledger", spread(rates["ours"]), ""],
        ["bare nats-py", spread(rates["rival"]), ""],
        ["**ratio** (aim: at least 0.5)", "", f"{statistics.median(ratios):.2f}"],
    ]
    note = (
        f"{SAMPLES} samples of {PROMPT_TOKENS + ANSWER_TOKENS} tokens, {RUNS} runs in turn, every write synced to disk."
    )
    print(publish("hops", "Samples through the pipeline", note, ["", "samples/s, median (min to max)", "ratio"], rows))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run({"middle": rival_middle, "end": rival_end}[sys.argv[1]](sys.argv[2]))
    else:
        main()
