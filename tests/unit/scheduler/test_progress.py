from __future__ import annotations

import dataclasses

import pytest

from services.scheduler.progress import Rate, Standing, standstill

IDLE = Standing(
    worker_steps=(3,), oldest_step=2, newest_step=3, waiting=0, leased=0, finished=0, batched_step=3, trained_step=3,
    last_step=9, open_groups=0, unsettled_groups=0, evaluation_left=0, needs_workers=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"waiting": 8, "worker_steps": ()}, "no rollout worker asks"),
        ({"waiting": 8, "newest_step": -1, "worker_steps": (-1,)}, "no version of the weights"),
        ({"waiting": 8, "leased": 4}, "4 samples are with rollout workers"),
        ({"waiting": 8, "worker_steps": (0, 1)}, "wait for a worker with version 2 (the newest has 1)"),
        ({"waiting": 8}, "no worker takes them"),
        ({"evaluation_left": 5}, "5 evaluation samples"),
        ({"batched_step": 4}, "step 4 is batched and the trainer"),
        ({"finished": 6, "open_groups": 3}, "reward, buffer"),
        ({}, "the trainer has 3 of 9 steps"),
        ({"cancelling": True, "waiting": 3, "unsettled_groups": 2}, "2 groups are not settled"),
        ({"trained_step": 9, "unsettled_groups": 2}, "2 groups are not settled"),
    ],
)
def test_a_standstill_names_the_stage_that_waits_and_what_for(change, said) -> None:
    assert said in standstill(dataclasses.replace(IDLE, **change), 31.0)


def test_a_supervised_job_does_not_wait_for_workers() -> None:
    found = dataclasses.replace(IDLE, worker_steps=(), needs_workers=False, waiting=3)
    assert "no rollout worker" not in standstill(found, 31.0)


def test_a_rate_is_over_the_last_ten_seconds() -> None:
    rate = Rate()
    rate.add(100, now=0.0)
    rate.add(50, now=9.0)
    assert rate.per_second(9.5) == 15.0
    assert rate.per_second(15.0) == 5.0
    assert rate.per_second(99.0) == 0.0
