import math
from collections import Counter

import numpy as np
import pytest

from services.trainer.examples import BadSample, from_scored
from shared.wire.messages import (
    Attempt,
    BatchedSample,
    Digests,
    Sampling,
    Score,
    Scored,
    Segment,
    Span,
    Trajectory,
    encode,
)


def segment(ids, mask, raw=None, spans=(), behaviour=None):
    columns = {}
    if raw is not None:
        columns["raw"] = np.array(raw, dtype="<f4").tobytes()
    if behaviour is not None:
        columns["behaviour"] = np.array(behaviour, dtype="<f4").tobytes()
    return Segment(
        role="any",
        token_ids=np.array(ids, dtype="<i4").tobytes(),
        mask=bytes(mask),
        columns=columns,
        spans=[Span(*span) for span in spans],
    )


PROMPT = segment([5, 6, 7], [0, 0, 0])
ANSWER = segment([8, 9], [1, 1], [-1.0, -2.0], [(0, 1, "3.1"), (1, 2, "4.1")], behaviour=[-0.5, -0.5])


def body(segments=(PROMPT, ANSWER), score=None, sample="j/4/2"):
    trajectory = Trajectory(
        sample=sample, attempt=Attempt(1, 7), segments=list(segments), sampling=Sampling(), finish_reason="stop",
        worker="w", started_at=0.0, finished_at=1.0, digests=Digests(),
    )  # fmt: skip
    return encode(Scored(trajectory=encode(trajectory), score=score or Score(components={"exact": 1.0}, total=2.5)))


def read(data, masked="", sampled=True, context_length=0, sample="j/4/2", attempt=None):
    record = BatchedSample(
        sample=sample, attempt=attempt or Attempt(1, 7), sequence=11, digest="", reward=2.5, masked=masked
    )
    return from_scored(data, record, step=6, sampled=sampled, context_length=context_length)


def test_segments_are_one_run_of_aligned_tokens():
    example = read(body())
    assert example.group == 4 and example.reward == 2.5 and example.solved
    assert example.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert example.mask.tolist() == [False, False, False, True, True]
    np.testing.assert_array_equal(example.logprobs, np.array([np.nan] * 3 + [-1.0, -2.0], dtype=np.float32))


def test_the_raw_column_is_used_and_never_the_behaviour_column():
    with_it, without = read(body()), read(body([PROMPT, segment([8, 9], [1, 1], [-1.0, -2.0], [(0, 2, "4.1")])]))
    np.testing.assert_array_equal(with_it.logprobs, without.logprobs)
    only_behaviour = segment([8, 9], [1, 1], None, [(0, 2, "4.1")], behaviour=[-0.5, -0.5])
    with pytest.raises(BadSample, match="no finite 'raw' log-probability"):
        read(body([PROMPT, only_behaviour]))


def test_several_turns_stay_in_order_and_tool_text_is_not_trained():
    tool = segment([20, 21], [0, 0])
    second = segment([10], [1], [-3.0], [(0, 1, "5.1")])
    example = read(body([PROMPT, ANSWER, tool, second]))
    assert example.token_ids.tolist() == [5, 6, 7, 8, 9, 20, 21, 10]
    assert np.flatnonzero(example.mask).tolist() == [3, 4, 7]
    assert example.ages == Counter({0: 1, 1: 1, 2: 1})  # step 6 starts from version 5


def test_a_demonstration_needs_no_log_probabilities():
    demonstration = segment([8, 9], [1, 1])
    assert read(body([PROMPT, demonstration]), sampled=False).trained_tokens == 2
    with pytest.raises(BadSample, match="log-probability"):
        read(body([PROMPT, demonstration]))


def test_an_appended_stop_token_outside_the_mask_is_not_trained():
    answer = segment([8, 2], [1, 0], [-1.0, np.nan], [(0, 1, "5.1")])
    assert np.flatnonzero(read(body([PROMPT, answer])).mask).tolist() == [3]


@pytest.mark.parametrize("total", [math.nan, math.inf])
def test_a_reward_that_is_no_number_masks_its_sample_and_is_not_counted(total):
    example = read(body(score=Score(total=total)))
    assert example.masked == "not graded" and not example.counted and example.trained_tokens == 0


def test_an_ungraded_sample_is_masked_and_not_counted():
    example = read(body(score=Score(total=1.0, valid=False)))
    assert example.masked == "not graded" and not example.counted and example.reward == 0.0


def test_a_sample_that_the_record_masks_still_counts_for_its_group():
    example = read(body(), masked="stale")
    assert example.masked == "stale" and example.counted and example.reward == 2.5 and example.trained_tokens == 0


def test_a_sample_over_the_context_is_masked():
    assert read(body(), context_length=4).masked == "5 tokens are over the context of 4"
    assert read(body(), context_length=5).masked == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sample": "j/4/3"}, "holds j/4/2"),
        ({"attempt": Attempt(1, 8)}, "holds j/4/2 attempt 1.7"),
        ({"data": b"junk"}, "cannot be read"),
        ({"data": body([segment([8, 9], [1, 1], [-1, -1], [(0, 2, "5.1")])])}, "first token is trained"),
    ],
)
def test_a_body_that_is_not_the_recorded_one_is_refused_in_one_line(change, said):
    arguments = {"data": body()} | change
    with pytest.raises(BadSample, match=said) as caught:
        read(**arguments)
    assert "\n" not in str(caught.value) and arguments.get("sample", "j/4/2") in str(caught.value)
