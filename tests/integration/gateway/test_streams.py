"""Samples on a real broker: found where they are, read with their scores, followed through their lives."""

import numpy as np
import pytest

from shared.wire import messages as m
from shared.wire import topics

JOB = "streams-1a2b3c"


def trajectory(key):
    ids = np.array([1, 2], dtype="<i4").tobytes()
    answer = m.Segment(role="assistant", token_ids=ids, mask=b"\x01\x01", spans=[m.Span(0, 2, "0.1")])
    return m.Trajectory(
        sample=key.id,
        attempt=m.Attempt(1, 1),
        segments=[answer],
        sampling=m.Sampling(),
        finish_reason="stop",
        text="olleh",
        worker="w1",
        started_at=1.0,
        finished_at=2.0,
        digests=m.Digests(),
        row={"question": "hello?"},
    )


@pytest.fixture
def filled(services):
    """A job with a group of four: waiting, generated, scored, and one of a second group in a batch."""
    bus = services.bus

    async def put(key):
        made = trajectory(key)
        await bus.publish(topics.trajectory_subject(key), m.encode(made), headers=m.body_headers(made))

    async def grade(key):
        made = trajectory(key)
        score = m.Score(components={"right": 1.0}, weights={"right": 1.0}, total=1.0)
        body = m.encode(m.Scored(trajectory=m.encode(made), score=score))
        headers = {**m.body_headers(made), **m.score_headers(score, body)}
        ack = await bus.publish(topics.scored_subject(key), body, headers=headers)
        return ack.sequence, headers["Digest"]

    async def fill():
        await bus.declare(topics.job_streams(JOB))
        for role in m.LEDGER_ROLES:
            await append(role, m.EpochOpened(epoch=1, role=role, holder="h"))
        for group, n in ((0, 3), (1, 1)):
            issued = m.Issued(epoch=1, group=group, row=group, row_digest="", n=n, version_step=0)
            await append("scheduler", issued)
        await put(m.SampleKey(JOB, 0, 1))
        await grade(m.SampleKey(JOB, 0, 2))
        sequence, digest = await grade(m.SampleKey(JOB, 1, 0))
        sample = m.BatchedSample(
            sample=f"{JOB}/1/0",
            attempt=m.Attempt(1, 1),
            sequence=sequence,
            digest=digest,
            reward=1.0,
            oldest_step=0,
            tokens=2,
        )
        await append("replay-buffer", m.Batched(epoch=1, step=1, trainer_epoch=1, samples=[sample]))

    async def append(role, record):
        await bus.publish(topics.ledger_subject(JOB, role), m.encode(record))

    services.create(JOB)
    services.do(fill())


def test_an_audit_finds_every_sample_and_misses_a_body_that_is_gone(gateway, services, filled, command):
    found = gateway.client.audit(JOB)
    assert found["balanced"], found["problems"]
    assert found["in_flight_where"] == {"waiting": 1, "trajectory": 1, "scored": 1, "given_up": 0, "batched": 1}
    page = gateway.client.samples(JOB)
    assert [sample["sample"] for sample in page["samples"]] == [f"{JOB}/1/0", f"{JOB}/0/2"]
    assert [sample["step"] for sample in page["samples"]] == [1, None]
    life = gateway.client.sample(f"{JOB}/1/0")
    assert [moment["what"] for moment in life["moments"]] == ["issued", "scored", "batched"]
    assert gateway.client.sample(f"{JOB}/0/1")["place"] == "in trajectory"
    said = command("samples", JOB).stdout
    assert "asked    hello?" in said
    assert "answered olleh" in said
    assert "reward 1.000  (right 1.000)  step 1" in said
    assert "batched" in command("sample", f"{JOB}/1/0").stdout
    services.do(services.bus.purge(topics.scored(JOB).name, f"scored.{JOB}.1.0"))
    lost = gateway.client.audit(JOB)
    assert [(p["kind"], p["samples"]) for p in lost["problems"]] == [("lost", [f"{JOB}/1/0"])]
    assert command("audit", JOB).returncode == 1
