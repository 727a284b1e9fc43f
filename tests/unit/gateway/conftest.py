"""Ledgers and streams made by hand, and a whole gateway over the bus in memory."""

import asyncio
import contextlib
import time
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from gateway.app import create_app
from gateway.config import Settings
from gateway.context import Gateway
from gateway.ledger_fold import LedgerFold
from shared.wire import messages as m
from shared.wire import topics
from shared.wire.bus.memory import MemoryBus

JOB = "sums-1a2b3c"


def sample(group, index, job=JOB):
    return m.SampleKey(job, group, index).id


class Book:
    """A ledger in the making: each call writes the record that its name says."""

    def __init__(self, job=JOB):
        self.job = job
        self.records = []
        self.epochs = {}
        self.batches = {}
        for role in m.LEDGER_ROLES:
            self.open(role)

    def write(self, role, record):
        self.records.append((role, record))
        return record

    def open(self, role):
        self.epochs[role] = self.epochs.get(role, 0) + 1
        self.write(role, m.EpochOpened(epoch=self.epochs[role], role=role, holder="me"))

    def issue(self, *groups, n=2):
        for group in groups:
            self.write(
                "scheduler",
                m.Issued(
                    epoch=self.epochs["scheduler"],
                    group=group,
                    row=group,
                    row_digest="r",
                    n=n,
                    version_step=0,
                ),
            )

    def requeue(self, id, reason="worker silent"):
        self.write(
            "scheduler",
            m.Requeued(
                epoch=self.epochs["scheduler"],
                sample=id,
                attempt=m.Attempt(1, 1),
                reason=reason,
                worker="w",
            ),
        )

    def give_up(self, id):
        self.write("scheduler", m.GaveUp(epoch=self.epochs["scheduler"], sample=id, error="boom", attempts=["1.1"]))

    def batch(self, step, *ids, oldest=None, sequences=None, digests=None):
        oldest = step - 1 if oldest is None else oldest
        samples = [
            m.BatchedSample(
                sample=id,
                attempt=m.Attempt(1, 1),
                sequence=(sequences or {}).get(id, 1),
                digest=(digests or {}).get(id, ""),
                reward=1.0,
                oldest_step=oldest,
                tokens=10,
            )
            for id in ids
        ]
        record = m.Batched(epoch=self.epochs["replay-buffer"], step=step, trainer_epoch=1, samples=samples)
        self.batches.setdefault(step, record)
        return self.write("replay-buffer", record)

    def train(self, first, last, digest=None, kept=0):
        covered = [self.batches[step] for step in range(first, last + 1) if step in self.batches]
        self.write(
            "trainer",
            m.Trained(
                epoch=self.epochs["trainer"],
                first=first,
                last=last,
                checkpoint=f"{last}.1",
                oldest_kept_step=kept,
                digest=m.batch_digest(covered) if digest is None else digest,
            ),
        )

    def retire(self, first, last):
        self.write("replay-buffer", m.Retired(epoch=self.epochs["replay-buffer"], first=first, last=last))

    def drop(self, *ids, reason="stale"):
        self.write("replay-buffer", m.Dropped(epoch=self.epochs["replay-buffer"], samples=list(ids), reason=reason))

    def die(self, *ids):
        self.write(
            "replay-buffer",
            m.Dead(
                epoch=self.epochs["replay-buffer"],
                samples=list(ids),
                errors=["boom"] * len(ids),
            ),
        )

    def end(self, last):
        self.write("scheduler", m.Ending(epoch=self.epochs["scheduler"], last_step=last, reason="solved"))

    def fold(self, staleness=1):
        fold = LedgerFold(self.job, staleness)
        for sequence, (_, record) in enumerate(self.records, 1):
            fold.apply(sequence, record)
        return fold

    async def publish(self, bus):
        for role, record in self.records:
            await bus.publish(topics.ledger_subject(self.job, role), m.encode(record))


def trajectory(id, attempt=1, text="12", version="0.1", sample_class="train"):
    ids = np.array([5, 6, 7], dtype="<i4")
    logprobs = np.array([-0.5, -0.25, -0.25], dtype="<f4").tobytes()
    return m.Trajectory(
        sample=id,
        attempt=m.Attempt(1, attempt),
        sample_class=sample_class,
        finish_reason="stop",
        text=text,
        worker="w1",
        segments=[
            m.Segment(role="prompt", token_ids=ids.tobytes(), mask=bytes(3)),
            m.Segment(
                role="assistant",
                token_ids=ids.tobytes(),
                mask=b"\x01\x01\x01",
                columns={"raw": logprobs, "behaviour": logprobs},
                spans=[m.Span(0, 3, version)],
            ),
        ],
        sampling=m.Sampling(),
        started_at=1.0,
        finished_at=2.5,
        digests=m.Digests(),
        row={"question": "5+7?", "answer": "12"},
    )


async def publish_trajectory(bus, id, **made):
    made = trajectory(id, **made)
    ack = await bus.publish(
        topics.trajectory_subject(made.key),
        m.encode(made),
        headers=m.body_headers(made),
        message_id=m.message_id(id, made.attempt),
    )
    return ack.sequence


async def publish_scored(bus, id, reward=1.0, **made):
    made = trajectory(id, **made)
    score = m.Score(components={"right": reward}, weights={"right": 1.0}, total=reward)
    body = m.encode(m.Scored(trajectory=m.encode(made), score=score))
    ack = await bus.publish(
        topics.scored_subject(made.key),
        body,
        headers={**m.body_headers(made), **m.score_headers(score, body)},
        message_id=m.message_id(id, made.attempt),
    )
    return ack.sequence


def job_record(id=JOB, state="running", created_at=1.0, staleness=1, **changes):
    spec = {"name": "sums", "model": "tiny", "algorithm": {"kind": "grpo", "steps": 8, "staleness": staleness}}
    fields = {"name": id.rpartition("-")[0], "spec": spec, "digest": "d", **changes}
    return m.JobRecord(id=id, state=state, created_at=created_at, updated_at=created_at, **fields)


async def new_bus(*jobs):
    bus = MemoryBus()
    await bus.declare(topics.SHARED_STREAMS, topics.BUCKETS)
    for job in jobs:
        await bus.declare(topics.job_streams(job))
    return bus


async def until(condition, what, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def http_gateway(bus=None, data_dir=None, checkers=("data", "reward"), problems=(), facts=None, checked=None):
    """(http, bus, gateway): the real application over the bus in memory, with services that answer the checks."""
    bus = bus or await new_bus()
    settings = Settings(**({"data_dir": data_dir} if data_dir else {}), check_seconds=2.0)
    gateway = Gateway(settings)

    async def answer(data):
        if checked is not None:
            checked.append(m.decode(m.CheckJob, data).spec)
        return m.encode(m.CheckReply(problems=list(problems), facts=facts or {}))

    for name in checkers:
        await bus.serve(f"check.{name}", answer, queue=name)
    told = []

    async def tell(job, kind, body):
        told.append((job, kind, body))
        event = m.Event(job=job, event=kind, at=1.0, body=body)
        await bus.publish(topics.event_subject(job, kind), m.encode(event))

    gateway.attach(bus, tell)
    gateway.told = told
    watching = asyncio.create_task(gateway.index.run(bus))
    await until(lambda: gateway.index.ready, "list of jobs")
    transport = httpx.ASGITransport(app=create_app(gateway), raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            yield http, bus, gateway
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


JOB_FILE = """
name: sums
model: tiny
data: {reasoning_gym: chain_sum}
reward: [{name: right, kind: exact}]
"""


@pytest.fixture
def book():
    return Book()


@pytest.fixture(scope="session")
def make():
    """The hand-made things above, by name."""

    things = (Book, sample, trajectory, publish_trajectory, publish_scored, job_record, new_bus, until, http_gateway)
    return SimpleNamespace(JOB=JOB, JOB_FILE=JOB_FILE, **{thing.__name__: thing for thing in things})
