"""kill -9 of each service while it holds something: the job ends, and the ledger balances."""

import os
import signal

import pytest

pytestmark = pytest.mark.slow

STEPS = {"steps": 8, "group_size": 4, "groups_per_step": 2, "learning_rate": 1e-4, "staleness": 1}
LONG = {**STEPS, "steps": 40}  # so that a lease or a waiting sample is still seen where steps take a moment only
SLOW_REWARD = """
import time

def reward(answer, row):
    time.sleep(0.15)
    return float(len(answer) % 3)
"""


def progress(stack, job):
    event = stack.client.status(job)["progress"]
    return event["body"] if event else {}


def steps_done(stack, job):
    return len(stack.client.metrics(job)["steps"])


def test_a_worker_killed_with_leases_gives_them_back(stack, submit, until):
    job = submit(algorithm=LONG, sampling={"max_tokens": 64})
    until(lambda: steps_done(stack, job) >= 1 and progress(stack, job).get("leased", 0) > 0, "lease")
    stack.kill("rollout")
    audit = stack.finish(job)
    assert audit["trained"] == 40 * 2 * 4


def test_the_engine_killed_in_the_middle_is_started_again(stack, submit, until):
    job = submit(algorithm=LONG, sampling={"max_tokens": 64})
    until(lambda: steps_done(stack, job) >= 1 and progress(stack, job).get("leased", 0) > 0, "lease")
    engines = [p for p in stack.processes("rollout") if "engine" in " ".join(p.cmdline())]
    assert engines, "no engine process"
    os.kill(engines[0].pid, signal.SIGKILL)
    stack.finish(job)


def test_a_grader_killed_with_an_unscored_trajectory_grades_it_again(stack, submit, until, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW_REWARD)
    reward = [{"name": "slow", "kind": "python", "function": f"{tmp_path / 'slow.py'}:reward"}]
    job = submit(algorithm={**STEPS, "steps": 4}, reward=reward)
    until(lambda: steps_done(stack, job) >= 1, "first step")
    until(lambda: stack.client.audit(job)["in_flight_where"].get("trajectory", 0) > 0, "unscored trajectory")
    stack.kill("reward")
    audit = stack.finish(job, 180)
    assert audit["trained"] == 4 * 2 * 4


def test_the_buffer_killed_with_scored_samples_that_no_batch_has_yet(stack, submit, until):
    job = submit(algorithm=LONG)
    until(lambda: stack.client.audit(job)["in_flight_where"].get("scored", 0) > 0, "scored sample in no batch")
    stack.kill("replay-buffer")
    audit = stack.finish(job)
    assert audit["trained"] == 40 * 2 * 4


def test_the_scheduler_killed_while_samples_are_leased(stack, submit, until):
    job = submit(algorithm=LONG, sampling={"max_tokens": 64})
    until(lambda: steps_done(stack, job) >= 1 and progress(stack, job).get("leased", 0) > 0, "lease")
    stack.kill("scheduler")
    audit = stack.finish(job)
    assert audit["trained"] == 40 * 2 * 4


def test_the_trainer_killed_with_half_a_checkpoint(stack, submit, until):
    job = submit(algorithm={**STEPS, "steps": 12}, checkpoint={"every": 2})
    folder = stack.data / "checkpoints" / job

    def half_written():
        return folder.is_dir() and [p for p in folder.iterdir() if not p.name.replace(".", "").isdigit()]

    until(half_written, "half-written checkpoint")
    stack.kill("trainer")
    audit = stack.finish(job, 180)
    assert audit["trained"] == 12 * 2 * 4
    assert not half_written()


def test_weight_broadcast_killed_in_a_run(stack, submit, until):
    job = submit(algorithm=STEPS)
    until(lambda: steps_done(stack, job) >= 2, "second step")
    stack.kill("weight-broadcast")
    stack.finish(job)


def test_the_gateway_killed_in_a_run_forgets_nothing(stack, submit, until):
    job = submit(algorithm=STEPS)
    until(lambda: steps_done(stack, job) >= 1, "first step")
    before = [row["pid"] for row in stack.ps() if row["service"] == "gateway"]
    stack.kill("gateway")

    def back():
        rows = [row for row in stack.ps() if row["service"] == "gateway"]
        return rows and rows[0]["state"] == "healthy" and rows[0]["pid"] not in before

    until(back, "gateway")
    stack.finish(job)


def test_the_broker_killed_in_a_run(stack, submit, until):
    job = submit(algorithm=STEPS)
    until(lambda: steps_done(stack, job) >= 2, "second step")
    stack.kill("nats")
    audit = stack.finish(job, 180)
    assert audit["trained"] == 8 * 2 * 4
