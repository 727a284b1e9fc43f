"""An engine's reply: what is believed, and what is refused."""

import json
import math
from typing import Any

import numpy as np
import pytest

from services.rollout.answer import read
from services.rollout.errors import BadAnswer, Cut, EngineRefused
from services.rollout.generate import prompt_ids, request, trajectory
from shared.wire.messages import Attempt, Digests, Lease, Sampling, Segment, Span, array, decode, encode
from shared.wire.messages import Trajectory as Made


def reply(**changes: Any) -> bytes:
    meta = {
        "finish_reason": {"type": "stop", "matched": 2},
        "output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, None], [-1.0, 2, None]],
        "weight_versions": [{"version": "3.1", "start": 0, "end": 2}, {"version": "4.1", "start": 2, "end": 3}],
        "cached_tokens": 4,
    }
    body: dict[str, Any] = {"text": "hi", "output_ids": [7, 8, 2], "meta_info": meta}
    for name, value in changes.items():
        (meta if name in meta or name.startswith("output_token") else body)[name] = value
    return json.dumps(body).encode()


def test_ids_columns_and_spans_are_taken_over() -> None:
    answer = read(reply(), cuts=False)
    assert answer.token_ids.tolist() == [7, 8, 2]
    assert answer.raw.tolist() == answer.behaviour.tolist() == [-0.5, -0.25, -1.0]
    assert answer.spans == [Span(0, 2, "3.1"), Span(2, 3, "4.1")]
    assert (answer.finish_reason, answer.text, answer.cached_tokens) == ("stop", "hi", 4)


def test_behaviour_is_what_top_p_and_top_k_left() -> None:
    answer = read(reply(output_token_sampling_logprobs=[-0.4, -0.2, 0.0]), cuts=True)
    assert np.allclose(answer.behaviour, [-0.4, -0.2, 0.0]) and answer.raw[0] == -0.5
    with pytest.raises(BadAnswer, match="nothing as output_token_sampling_logprobs"):
        read(reply(), cuts=True)


def test_an_abort_before_the_first_token_is_no_empty_answer() -> None:
    finish = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    with pytest.raises(Cut, match="before the first token") as cut:
        read(reply(finish_reason=finish, output_ids=[], output_token_logprobs=[]), cuts=False)
    assert cut.value.tokens == 0
    with pytest.raises(Cut, match="after 3 tokens") as cut:
        read(reply(finish_reason=finish), cuts=False)
    assert cut.value.tokens == 3


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (b"", "not JSON"),
        (b"[]", "not an answer"),
        (reply(finish_reason=None), "without a finish_reason"),
        (reply(output_ids=[]), "no token"),
        (reply(output_ids=[7, 8]), "3 entries"),
        (reply(output_token_logprobs=[[-0.5, 7, None]]), "1 entries"),
        (reply(output_token_logprobs=[[None, 7, None]] * 3), "not numbers|no finite"),
        (reply(output_token_logprobs=[[-math.inf, 7, None]] * 3), "not JSON|no finite"),
        (reply(weight_versions=[]), "no weight_versions"),
        (reply(weight_versions=[{"version": "default", "start": 0, "end": 3}]), "cannot be read"),
        (reply(weight_versions=[{"version": "3.1", "start": 1, "end": 3}]), "hole at token 0"),
        (reply(weight_versions=[{"version": "3.1", "start": 0, "end": 2}]), "cover 2 of 3"),
    ],
)
def test_an_answer_that_breaks_its_promises_is_refused(event: bytes, says: str) -> None:
    with pytest.raises(BadAnswer, match=says):
        read(event, cuts=False)


def test_an_error_event_is_a_refusal_in_one_line() -> None:
    with pytest.raises(EngineRefused, match="too long for the context"):
        read(json.dumps({"error": {"message": "too long\nfor the context"}}).encode(), cuts=False)


def segment(ids: list[int], mask: int = 0, role: str = "user") -> Segment:
    return Segment(role=role, token_ids=np.array(ids, "<i4").tobytes(), mask=bytes([mask]) * len(ids))


def lease(**sampling: Any) -> Lease:
    return Lease(
        sample="job/3/1", attempt=Attempt(2, 9), prefix=[segment([1, 5]), segment([6], mask=1)],
        sampling=Sampling(**sampling), deadline_seconds=60, digests=Digests(job="d"), row={"answer": 12},
    )  # fmt: skip


def test_the_request_gives_ids_and_never_text() -> None:
    body = request(lease(temperature=0.6, max_tokens=9, seed=77, stop_token_ids=[2]), "rid")
    assert body["input_ids"] == prompt_ids(lease()) == [1, 5, 6] and "text" not in body
    assert body["stream"] and body["return_logprob"] and body["rid"] == "rid"
    parameters = body["sampling_params"]
    assert (parameters["temperature"], parameters["max_new_tokens"], parameters["sampling_seed"]) == (0.6, 9, 77)
    assert parameters["stop_token_ids"] == [2] and "stop" not in parameters


def test_the_sampling_mask_is_asked_for_exactly_when_something_is_cut() -> None:
    assert "return_sampling_mask" not in request(lease(), "rid")
    assert request(lease(top_p=0.9), "rid")["return_sampling_mask"]
    assert request(lease(top_k=5), "rid")["return_sampling_mask"]
    assert "return_sampling_mask" not in request(lease(temperature=0.0, top_p=0.9), "rid"), "greedy draws from one"


def test_what_an_engine_cannot_report_is_not_drawn_and_the_trajectory_says_so() -> None:
    assert request(lease(top_p=0.9), "rid")["sampling_params"]["top_k"] == 4096
    assert request(lease(top_k=50_000), "rid")["sampling_params"]["top_k"] == 4096
    assert request(lease(top_p=0.9, top_k=5), "rid")["sampling_params"]["top_k"] == 5
    assert request(lease(), "rid")["sampling_params"]["top_k"] == -1
    answer = read(reply(output_token_sampling_logprobs=[-0.4, -0.2, 0.0]), cuts=True)
    made = trajectory(lease(top_p=0.9), answer, worker="w", started_at=1.0, finished_at=2.0)
    assert made.sampling.top_k == 4096


def test_every_sampled_token_is_trained_and_nothing_that_was_given() -> None:
    made = trajectory(lease(), read(reply(), cuts=False), worker="w", started_at=1.0, finished_at=2.0)
    assert [array(s.mask, "u1").tolist() for s in made.segments] == [[0, 0], [0], [1, 1, 1]]
    assert array(made.segments[-1].token_ids, "<i4").tolist() == [7, 8, 2], "the sampled stop token is there"
    assert set(made.segments[-1].columns) == {"raw", "behaviour"}
    assert made.trained_versions() == [3, 4]
    assert (made.sample, made.attempt, made.row, made.digests.job) == ("job/3/1", Attempt(2, 9), {"answer": 12}, "d")
    assert decode(Made, encode(made)) == made
