"""At equal version the trainer's recomputed log-probabilities are the engine's, end to end.

The real engine process draws, the rollout service's own code makes the trajectory, it crosses the wire encoded, and the
trainer's own code scores it, with prompts shared and not.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from services.rollout.answer import read
from services.rollout.generate import cuts, request, trajectory
from services.trainer.examples import Example, from_scored
from services.trainer.learner import Learner
from services.trainer.policy import load_model
from shared.job.spec import AlgorithmSpec, SamplingSpec
from shared.policy import Tokenizer, resolve_model
from shared.wire.messages import (
    Attempt,
    BatchedSample,
    Digests,
    Lease,
    Sampling,
    Score,
    Scored,
    Segment,
    Trajectory,
    array,
    encode,
)

TOLERANCE = 1e-3


@pytest.fixture(scope="module", params=["tiny", "tiny-qwen2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    return resolve_model(request.param, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def engine(folder, tmp_path_factory: pytest.TempPathFactory):
    """The built-in engine on that model, in float32, as version 0.1; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("engine") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "engine", "--model-path", str(folder.path), "--port", str(port),
                "--dtype", "float32", "--weight-version", "0.1",
            ],
            env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
            stdout=out,
            stderr=out,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL),
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while not ready(url):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait()


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def draw(engine: str, prompt: list[int], sampling: Sampling, index: int) -> Trajectory:
    """One sample as the rollout service makes it."""
    ids = np.array(prompt, dtype="<i4")
    lease = Lease(
        sample=f"truth/0/{index}",
        attempt=Attempt(1, index),
        prefix=[Segment(role="prompt", token_ids=ids.tobytes(), mask=bytes(len(ids)))],
        sampling=sampling,
        deadline_seconds=60,
        digests=Digests(),
    )
    body = request(lease, f"truth-{index:08d}") | {"stream": False}
    reply = httpx.post(f"{engine}/generate", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    answer = read(reply.content, cuts=cuts(sampling))
    return trajectory(lease, answer, worker="test", started_at=0.0, finished_at=1.0)


def to_example(made: Trajectory) -> Example:
    """Over the wire and back."""
    score = Score(components={"exact": 1.0}, weights={"exact": 1.0}, total=float(made.key.index % 2))
    record = BatchedSample(sample=made.sample, attempt=made.attempt, sequence=1, digest="", reward=score.total)
    body = encode(Scored(trajectory=encode(made), score=score))
    return from_scored(body, record, step=1, sampled=True, context_length=0)


def learner(folder, temperature: float, share: bool) -> Learner:
    return Learner(
        load_model(folder.path, device=torch.device("cpu")),
        algorithm=AlgorithmSpec(learning_rate=1e-9),
        sampling=SamplingSpec(temperature=temperature),
        share_prompts=share,
    )


@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_at_equal_version_the_trainer_recomputes_the_engines_log_probabilities(folder, engine, temperature, top_p):
    torch.set_num_threads(1)
    prompt = Tokenizer.load(folder.path).encode_plain("spell backward: slipstream")
    sampling = [Sampling(temperature=temperature, top_p=top_p, max_tokens=24, seed=i) for i in range(6)]
    made = [draw(engine, prompt, each, i) for i, each in enumerate(sampling)]
    for one in made:
        for segment in one.segments:
            lengths = {segment.length, len(segment.mask), *(len(c) // 4 for c in segment.columns.values())}
            assert len(lengths) == 1
        behaviour = array(one.segments[-1].columns["behaviour"], "<f4")
        raw = array(one.segments[-1].columns["raw"], "<f4")
        # What was kept has at least the share top_p of the probability, so renormalising adds at most -log(top_p).
        assert (behaviour >= raw - 1e-5).all() and (behaviour <= raw - math.log(top_p) + 1e-4).all()
    examples = [to_example(one) for one in made]
    for share in (True, False):
        trainer = learner(folder, temperature, share)
        assert trainer.share_prompts is share
        report = trainer.step(examples, 1)
        assert report.means["importance"] == pytest.approx(1.0, abs=TOLERANCE)
        assert report.means["clipped"] == 0.0
        for example in examples:
            gap = np.abs(recomputed(trainer, example) - example.logprobs[example.mask])
            assert gap.max() < TOLERANCE


def recomputed(trainer: Learner, example: Example) -> np.ndarray:
    from services.trainer.collate import collate
    from services.trainer.packing import rows

    packed = rows([example], np.ones(1), np.ones(1), budget=10**6, share_prompts=False)
    with torch.no_grad():
        batch = collate(packed, pad_id=0, dtype=torch.float32, device=torch.device("cpu"))
        return trainer.score(batch).numpy()


def test_a_sampled_stop_token_is_trained_like_any_other(folder, engine):
    prompt = Tokenizer.load(folder.path).encode_plain("ab")
    free = draw(engine, prompt, Sampling(max_tokens=12, seed=5), 0)
    ids = array(free.segments[-1].token_ids, "<i4")
    stop = int(ids[-1])
    first = int(np.flatnonzero(ids == stop)[0])
    stopped = draw(engine, prompt, Sampling(max_tokens=12, seed=5, stop_token_ids=[stop]), 0)
    assert stopped.finish_reason == "stop"
    example = to_example(stopped)
    assert example.token_ids.tolist() == [*prompt, *ids[: first + 1].tolist()]
    assert example.mask.tolist() == [False] * len(prompt) + [True] * (first + 1)
    gap = np.abs(recomputed(learner(folder, 1.0, False), example) - example.logprobs[example.mask])
    assert gap[-1] < TOLERANCE


def test_every_trained_version_is_the_one_that_the_engine_stamped(folder, engine, tmp_path: Path):
    prompt = Tokenizer.load(folder.path).encode_plain("ab")
    example = to_example(draw(engine, prompt, Sampling(max_tokens=5, seed=1), 0))
    assert example.ages == {0: example.trained_tokens}
