"""How components become one score, with the linear kinds that need no process."""

import asyncio
from typing import Any

import numpy as np

from services.reward.components import Component
from services.reward.grade import JobGrader, code_digest, total
from services.reward.grader import Limits, environment
from services.reward.pool import Pool
from services.reward.python_process import PythonProcesses
from shared.job.spec import JobSpec
from shared.wire.messages import Attempt, Digests, Sampling, Score, Segment, Trajectory


def job(*reward: dict[str, Any]) -> JobSpec:
    return JobSpec.model_validate(
        {"name": "sums", "model": "tiny", "data": {"jsonl": "rows.jsonl"}, "reward": list(reward)}
    )


def answer(text: str, row: dict[str, Any], *, tokens: int = 3, finish_reason: str = "stop") -> Trajectory:
    ids = np.arange(tokens, dtype="<i4").tobytes()
    return Trajectory(
        sample="sums-1a2b/0/0", attempt=Attempt(1, 1), worker="w", text=text, row=row, finish_reason=finish_reason,
        segments=[Segment(role="assistant", token_ids=ids, mask=b"\x01" * tokens)],
        sampling=Sampling(), started_at=0.0, finished_at=1.0, digests=Digests(),
    )  # fmt: skip


def graded(spec: JobSpec, trajectory: Trajectory) -> Score:
    async def grade() -> Score:
        pool = Pool(1, Limits(), start_seconds=60)
        return await JobGrader("sums-1a2b", spec, pool, PythonProcesses(1, start_seconds=60), name="r").grade(
            trajectory
        )

    return asyncio.run(grade())


EXACT = {"name": "right", "kind": "exact", "extract": "last_number"}
SHORT = {"name": "short", "kind": "length", "weight": 0.5, "target_tokens": 2}


def test_the_total_is_the_weighted_sum_of_the_components() -> None:
    score = graded(job(EXACT, SHORT), answer("it is 12", {"answer": 12}, tokens=4))
    assert score.valid and score.error == ""
    assert score.components == {"right": 1.0, "short": 0.5}
    assert score.weights == {"right": 1.0, "short": 0.5}
    assert score.total == 1.25
    assert score.graded_by == "r" and score.code_digest


def test_a_wrong_answer_is_valid_and_worth_nothing() -> None:
    score = graded(job(EXACT), answer("it is 13", {"answer": 12}))
    assert score.valid and score.total == 0.0


def test_one_component_that_cannot_grade_makes_the_whole_score_invalid() -> None:
    score = graded(job(SHORT, EXACT), answer("it is 12", {"question": "?"}))
    assert not score.valid
    assert score.total == 0.0
    assert "'right'" in score.error and "3 attempts" in score.error and "\n" not in score.error


def test_a_demonstration_is_valid_without_grading() -> None:
    score = graded(job(EXACT), answer("", {}, finish_reason="demonstration"))
    assert score.valid and score.total == 0.0 and score.components == {}


def test_the_code_digest_follows_settings_and_source() -> None:
    spec = job(EXACT)
    components = [Component(reward, spec.data) for reward in spec.reward]
    other = [Component(reward, spec.data) for reward in job({**EXACT, "weight": 2.0}).reward]
    digests = {code_digest(components, {}), code_digest(other, {}), code_digest(components, {"right": "ab"})}
    assert len(digests) == 3
    assert code_digest(components, {}) == code_digest(list(components), {})


def test_an_empty_sum_is_zero() -> None:
    assert total({}, {}) == 0.0


def test_graders_see_none_of_the_services_secrets() -> None:
    seen = environment({"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "x", "HF_TOKEN": "x", "SLIPSTREAM_NATS_URL": "x"})
    assert seen["PATH"] == "/bin" and seen["OMP_NUM_THREADS"] == "1"
    assert not {"AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "SLIPSTREAM_NATS_URL"} & set(seen)
