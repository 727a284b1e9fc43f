"""`staleness: 0` with `deterministic: true` is a plain synchronous loop, bit for bit, with any number of workers."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading

import httpx
import numpy as np
import pytest
import torch

from services.scheduler.loading import read_material
from services.trainer.examples import Example
from services.trainer.learner import Learner
from services.trainer.policy import load_model, write_model
from shared.job.seeds import sampling_seed, trainer_seed
from shared.job.spec import JobSpec
from shared.policy import resolve_model
from shared.wire import bus, topics
from shared.wire.messages import Scored, Trajectory, array, decode

pytestmark = pytest.mark.slow

PATTERN = "[a-m]"
STEPS, GROUPS, SIZE = 3, 2, 4


def the_job(make_job):
    return make_job(
        name="strict",
        algorithm={
            "steps": STEPS, "group_size": SIZE, "groups_per_step": GROUPS, "learning_rate": 1e-3, "staleness": 0,
            "precision": "float32",
        },
        sampling={"max_tokens": 12},
        reward=[{"name": "low", "kind": "regex", "pattern": PATTERN}],
        deterministic=True,
        retain=True,
        seed=7,
    )  # fmt: skip


def test_the_stack_gives_the_ids_rewards_and_losses_of_a_plain_loop(own_stack, make_job, tmp_path):
    job_file = the_job(make_job)
    own_stack.up()
    one = run_on(own_stack, job_file)
    own_stack.scale(rollout=3)
    three = run_on(own_stack, job_file)
    plain = plain_loop(json.loads(job_file), own_stack.data, tmp_path)

    for found in (one, three):
        assert found["losses"] == plain["losses"]
        assert found["samples"].keys() == plain["samples"].keys()
        for place, sample in plain["samples"].items():
            assert found["samples"][place] == sample, place
    assert len(set(plain["losses"])) == STEPS


def run_on(stack, job_file):
    """ids, log-probabilities and reward of every sample, and the loss of every step, of a run on the stack."""
    job = stack.client.submit(job_file)["id"]
    stack.finish(job)
    nats = next(row for row in stack.ps() if row["service"] == "nats")["ports"]["4222"]

    async def stored():
        connection = await bus.connect(f"nats://127.0.0.1:{nats}", name="test")
        try:
            follow = connection.follow(topics.scored(job).name, subject=topics.scored_train_filter(job), live=False)
            return [message.data async for message in follow]
        finally:
            await connection.close()

    samples = {}
    for body in asyncio.run(stored()):
        scored = decode(Scored, body)
        trajectory = decode(Trajectory, scored.trajectory)
        answer = trajectory.segments[-1]
        key = trajectory.key
        samples[key.group, key.index] = (
            array(answer.token_ids, "<i4").tolist(),
            array(answer.columns["raw"], "<f4").tolist(),
            scored.score.total,
        )
    return {"samples": samples, "losses": [row["loss"] for row in stack.client.metrics(job)["steps"]]}


def plain_loop(job, data_dir, folder):
    """Generate, grade, train, load the new weights; one after the other, in one process but for the engine."""
    spec = JobSpec.model_validate(job)
    source = resolve_model(spec.model, data_dir)
    material = read_material(spec, data_dir, "", threading.Event())
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(trainer_seed(spec.seed))
    try:
        model = load_model(source.path, device=torch.device("cpu"))
        learner = Learner(model, algorithm=spec.algorithm, sampling=spec.sampling)
        samples, losses = {}, []
        write_model(model, source, folder / "0", torch.float32)
        with Engine(folder / "0", material.prompts.context_length) as engine:
            for step in range(1, STEPS + 1):
                examples = []
                for group in range((step - 1) * GROUPS, step * GROUPS):
                    prompt = array(material.prompts.prompt(material.dataset.row_of(group)).token_ids, "<i4").tolist()
                    for index in range(SIZE):
                        seed = sampling_seed(spec.seed, f"strict/{group}/{index}")
                        ids, logprobs, text = engine.generate(prompt, spec.sampling.max_tokens, seed)
                        reward = float(re.search(PATTERN, text) is not None)
                        samples[group, index] = (ids, logprobs, reward)
                        examples.append(example(group, index, prompt, ids, logprobs, reward))
                losses.append(learner.step(examples, step).loss)
                write_model(model, source, folder / str(step), torch.float32)
                engine.load(folder / str(step), f"{step}.1")
        return {"samples": samples, "losses": losses}
    finally:
        torch.use_deterministic_algorithms(False)


def example(group, index, prompt, ids, logprobs, reward):
    untrained = len(prompt)
    return Example(
        sample=f"strict/{group}/{index}",
        group=group,
        token_ids=np.array([*prompt, *ids], dtype=np.int32),
        mask=np.array([False] * untrained + [True] * len(ids)),
        logprobs=np.array([np.nan] * untrained + logprobs, dtype=np.float32),
        reward=reward,
    )


class Engine:
    """The built-in engine, deterministic, with one request at a time."""

    def __init__(self, folder, context_length):
        command = [
            sys.executable, "-m", "engine", "--model-path", str(folder), "--dtype", "float32", "--deterministic",
            "--port", "0", "--weight-version", "0.1", "--max-running-requests", "32",
            "--context-length", str(context_length),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        url = self.process.stdout.readline().strip().removeprefix("listening on ")
        self.http = httpx.Client(base_url=url, timeout=60)
        return self

    def __exit__(self, *_):
        self.http.close()
        self.process.terminate()
        self.process.wait(10)
        self.process.stdout.close()

    def generate(self, prompt, max_tokens, seed):
        parameters = {"temperature": 1.0, "max_new_tokens": max_tokens, "sampling_seed": seed}
        body = {"input_ids": prompt, "sampling_params": parameters, "return_logprob": True}
        reply = self.http.post("/generate", json=body).raise_for_status().json()
        logprobs = np.array([entry[0] for entry in reply["meta_info"]["output_token_logprobs"]], dtype=np.float32)
        return reply["output_ids"], logprobs.tolist(), reply["text"]

    def load(self, folder, version):
        body = {"model_path": str(folder), "weight_version": version}
        assert self.http.post("/update_weights_from_disk", json=body).raise_for_status().json()["success"]
