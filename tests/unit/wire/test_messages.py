"""What is encoded comes back; what is not a message is refused in one line."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.wire.messages import (
    Attempt,
    BadMessage,
    Batched,
    BatchedSample,
    Digests,
    EpochOpened,
    Issued,
    SampleKey,
    Sampling,
    Score,
    Segment,
    Span,
    Trajectory,
    Version,
    batch_digest,
    body_headers,
    decode,
    decode_record,
    encode,
    message_id,
    score_headers,
)


def segment(mask: list[int] | None = None, spans: list[Span] | None = None, **columns: np.ndarray) -> Segment:
    n = 4
    return Segment(
        role="assistant",
        token_ids=np.arange(n, dtype="<i4").tobytes(),
        mask=np.array(mask if mask is not None else [1] * n, dtype="u1").tobytes(),
        columns={name: column.astype("<f4").tobytes() for name, column in columns.items()},
        spans=spans if spans is not None else [Span(0, n, "3.1")],
    )


def trajectory(*segments: Segment, **fields: object) -> Trajectory:
    values: dict[str, object] = {
        "sample": "job-1/12/0",
        "attempt": Attempt(2, 5),
        "segments": list(segments or (segment(),)),
        "sampling": Sampling(),
        "finish_reason": "stop",
        "worker": "w",
        "started_at": 1.0,
        "finished_at": 2.0,
        "digests": Digests(),
    }
    return Trajectory(**{**values, **fields})


def test_a_trajectory_comes_back_as_it_was():
    sampled = segment(raw=np.array([-0.5, np.nan, -1, -2]))
    sent = trajectory(sampled, row={"answer": "4", "n": 3}, extra={"a": [1, None]})
    assert decode(Trajectory, encode(sent)) == sent


def test_headers_say_what_a_reader_needs_without_the_body():
    sent = trajectory(segment(spans=[Span(0, 2, "3.1"), Span(2, 4, "4.1")]))
    headers = body_headers(sent) | score_headers(Score(total=0.5, valid=False), b"body")
    assert headers["Oldest-Step"] == "3" and headers["Tokens"] == "4"
    assert (headers["Valid"], headers["Reward"]) == ("0", "0.5")
    assert message_id(sent.sample, sent.attempt) == "job-1/12/0/2.5"


def test_a_demonstration_has_no_oldest_step():
    assert body_headers(trajectory(segment(spans=[])))["Oldest-Step"] == ""


@pytest.mark.parametrize(
    ("segments", "says"),
    [
        ([segment(mask=[1, 1])], "disagree"),
        ([segment(raw=np.zeros(3))], "column 'raw'"),
        ([segment(spans=[Span(0, 9, "1.1")])], "span"),
        ([segment(spans=[Span(2, 4, "1.1"), Span(0, 2, "1.1")])], "span"),
        ([segment(spans=[Span(0, 2, "1.1")])], "no version"),
        ([segment(spans=[Span(0, 4, "new")])], "version"),
        ([segment(mask=[0, 0, 0, 0])], "without a trained token"),
    ],
)
def test_a_trajectory_whose_parts_disagree_is_refused(segments, says):
    with pytest.raises(BadMessage, match=says):
        decode(Trajectory, encode(trajectory(*segments)))


def test_an_unknown_schema_number_is_refused_with_the_number():
    raw = msgpack.unpackb(encode(trajectory()))
    with pytest.raises(BadMessage, match="schema 99 of Trajectory"):
        decode(Trajectory, msgpack.packb({**raw, "schema": 99}))


def test_an_unknown_field_is_ignored_and_a_missing_one_refused():
    raw = msgpack.unpackb(encode(trajectory()))
    assert decode(Trajectory, msgpack.packb({**raw, "later": 1})) == trajectory()
    del raw["worker"]
    with pytest.raises(BadMessage, match="worker"):
        decode(Trajectory, msgpack.packb(raw))


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(data):
    with pytest.raises(BadMessage) as caught:
        decode(Trajectory, data)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=60), st.integers(0, 400))
def test_a_damaged_message_is_refused_or_whole(noise, at):
    data = bytearray(encode(trajectory()))
    at = min(at, len(data))
    data[at : at + len(noise)] = noise
    try:
        decode(Trajectory, bytes(data)).check()
    except BadMessage as error:
        assert str(error)


def test_a_record_knows_its_kind():
    record = Issued(epoch=3, group=1, row=2, row_digest="d", n=4, version_step=0)
    assert decode_record(encode(record)) == record
    opened = EpochOpened(epoch=1, role="trainer", holder="h")
    assert decode_record(encode(opened)) == opened
    with pytest.raises(BadMessage):
        decode_record(msgpack.packb({"record": "unheard of", "epoch": 1}))


def test_the_batch_digest_changes_with_what_was_used_and_not_with_who_wrote_it():
    sample = BatchedSample(sample="j/0/0", attempt=Attempt(1, 1), sequence=7, digest="d", reward=1.0)
    batch = Batched(epoch=1, step=1, trainer_epoch=1, samples=[sample])
    same = Batched(epoch=2, step=1, trainer_epoch=3, samples=[sample])
    other = Batched(
        epoch=1,
        step=1,
        trainer_epoch=1,
        samples=[BatchedSample(sample="j/0/0", attempt=Attempt(1, 2), sequence=8, digest="d", reward=1.0)],
    )
    assert batch_digest([batch]) == batch_digest([same]) != batch_digest([other])


@given(st.integers(0, 10**6), st.integers(0, 10**4), st.none() | st.integers(0, 99))
def test_a_sample_id_reads_back(group, index, eval_round):
    key = SampleKey("job-1a2b", group, index, eval_round)
    assert SampleKey.parse(key.id) == key


@pytest.mark.parametrize(
    "text", ["", "job", "job/1", "job/1/2/3", "job/x/1", "Job/1/2", "job/1/2\n", "job/\u0661/2", "-/1/2"]
)
def test_what_is_no_sample_id_is_refused(text):
    with pytest.raises(BadMessage):
        SampleKey.parse(text)


@pytest.mark.parametrize("text", ["", "1", "1.", ".1", "1.2.3", "a.b", "-1.2", "1.²"])
def test_what_is_no_version_is_refused(text):
    with pytest.raises(BadMessage):
        Version.parse(text)


def test_versions_are_ordered_by_step_then_epoch():
    assert Version(2, 1) > Version(1, 9) and Version(2, 2) > Version(2, 1)
    assert str(Version.parse("12.3")) == "12.3"
