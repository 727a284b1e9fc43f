"""Subjects: training samples and evaluation samples never match each other's filters."""

from __future__ import annotations

import pytest

from shared.wire.bus.subjects import job_of, matches
from shared.wire.messages import BadMessage, SampleKey
from shared.wire.topics import (
    job_streams,
    scored,
    scored_eval_filter,
    scored_subject,
    scored_train_filter,
    trajectory_subject,
)

TRAIN, EVAL = SampleKey("j", 3, 1), SampleKey("j", 3, 1, eval_round=2)


def test_each_filter_takes_its_own_samples_only():
    assert matches(scored_train_filter("j"), scored_subject(TRAIN))
    assert not matches(scored_train_filter("j"), scored_subject(EVAL))
    assert matches(scored_eval_filter("j"), scored_subject(EVAL))
    assert not matches(scored_eval_filter("j"), scored_subject(TRAIN))


def test_both_belong_to_the_job_s_streams_and_to_no_other_job_s():
    for key in (TRAIN, EVAL):
        assert matches(scored("j").subjects[0], scored_subject(key))
        assert not matches(scored("j2").subjects[0], scored_subject(key))
        assert job_of(trajectory_subject(key)) == "j"


def test_the_job_s_streams_share_no_subject():
    names = [stream.name for stream in job_streams("j")]
    assert names == ["ledger-j", "trajectory-j", "scored-j", "objects-j"]


@pytest.mark.parametrize("job", ["", "A", "a.b", "a b", "a*", "-a", "a" * 64])
def test_what_cannot_stand_in_a_subject_is_no_job(job):
    with pytest.raises(BadMessage):
        job_streams(job)


@pytest.mark.parametrize(
    ("pattern", "subject", "fits"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("*.b", "a.b", True),
        (">", "a", True),
        ("a.b.c", "a.b", False),
    ],
)
def test_wildcards(pattern, subject, fits):
    assert matches(pattern, subject) is fits
