"""Ctrl-C in the middle of a job, and the next `up`; the broker away at start; a worker that is slow."""

import signal
import subprocess

import psutil
import pytest

pytestmark = pytest.mark.slow


def test_ctrl_c_ends_everything_within_ten_seconds_and_the_job_goes_on_at_the_next_up(own_stack, make_job, until):
    own_stack.up()
    algorithm = {"steps": 12, "group_size": 4, "groups_per_step": 2, "learning_rate": 1e-4}
    job = own_stack.client.submit(make_job(algorithm=algorithm))["id"]
    until(lambda: len(own_stack.client.metrics(job)["steps"]) >= 3, "third step")
    processes = psutil.Process(own_stack.process.pid).children(recursive=True)
    own_stack.process.send_signal(signal.SIGINT)
    assert own_stack.process.wait(10) == 0
    left = [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not left
    own_stack.up()
    audit = own_stack.finish(job)
    assert audit["trained"] == 12 * 2 * 4
    assert [row["step"] for row in own_stack.client.metrics(job)["steps"]] == list(range(1, 13))


def test_a_stack_killed_whole_in_the_middle_loses_and_doubles_nothing(own_stack, make_job, until):
    own_stack.up()
    algorithm = {"steps": 12, "group_size": 4, "groups_per_step": 2, "learning_rate": 1e-4}
    job = own_stack.client.submit(make_job(algorithm=algorithm))["id"]
    until(lambda: len(own_stack.client.metrics(job)["steps"]) >= 3, "third step")
    processes = psutil.Process(own_stack.process.pid).children(recursive=True)
    own_stack.process.kill()
    own_stack.process.wait()
    psutil.wait_procs(processes, timeout=10)
    own_stack.up()
    audit = own_stack.finish(job)
    assert audit["trained"] == 12 * 2 * 4


def test_with_a_slow_worker_no_token_is_older_than_the_bound_and_few_are_dropped(own_stack, make_job, until):
    own_stack.up("--scale", "rollout=2")
    algorithm = {"steps": 24, "group_size": 4, "groups_per_step": 2, "learning_rate": 1e-4, "staleness": 2}
    job = own_stack.client.submit(make_job(algorithm=algorithm, sampling={"max_tokens": 32}))["id"]
    until(lambda: own_stack.client.metrics(job)["steps"], "first step")
    slow = own_stack.processes("rollout")[-1]
    with Slowed(slow.pid):
        audit = own_stack.finish(job, 240)
    ages = {int(age): tokens for age, tokens in audit["age_histogram"].items()}
    assert max(ages) <= 2
    total = sum(ages.values())
    assert ages.get(1, 0) >= 0.1 * total, ages
    assert ages.get(2, 0) >= 0.1 * total, ages
    assert audit["dropped_reasons"].get("stale", 0) < 0.05 * audit["issued"], audit


class Slowed:
    """Lets a process run only a third of the time, by stopping and continuing it from a process of its own."""

    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        loop = f"while kill -STOP {self.pid} 2>/dev/null; do sleep 0.1; kill -CONT {self.pid}; sleep 0.05; done"
        self.process = subprocess.Popen(["sh", "-c", loop])

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        subprocess.run(["kill", "-CONT", str(self.pid)], check=False, stderr=subprocess.DEVNULL)
