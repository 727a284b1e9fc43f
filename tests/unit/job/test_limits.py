from __future__ import annotations

from typing import Any

from shared.job import limits
from shared.job.load import load_job


def test_streams_hold_what_two_checkpoints_and_the_staleness_bound_keep(job: dict[str, Any]) -> None:
    algorithm = {"groups_per_step": 4, "group_size": 8, "staleness": 2, "steps": 1000}
    spec = load_job({**job, "algorithm": algorithm, "checkpoint": {"every": 10}})
    assert limits.samples_kept(spec) == (2 * 10 + 2 + 1) * 4 * 8
    assert spec.groups_in_flight == 3 * 4


def test_a_short_job_needs_room_for_its_own_samples_only(job: dict[str, Any]) -> None:
    spec = load_job({**job, "algorithm": {"steps": 5, "staleness": 0}, "checkpoint": {"every": 1_000_000}})
    assert limits.samples_kept(spec) == (5 + 1) * 64


def test_a_job_that_retains_its_samples_needs_room_for_all(job: dict[str, Any]) -> None:
    spec = load_job({**job, "retain": True, "algorithm": {"steps": 500}})
    assert limits.samples_kept(spec) == (500 + 2) * 64


def test_evaluations_are_counted_by_their_modes(job: dict[str, Any]) -> None:
    spec = load_job({**job, "evaluation": {"prompts": 10, "samples": 4}})
    assert limits.evaluation_samples(spec) == 10 + 40


def test_room_grows_with_the_tokens_up_to_what_travels_inline(job: dict[str, Any]) -> None:
    spec = load_job({**job, "sampling": {"max_tokens": 1000}})
    assert limits.trajectory_bytes(spec, 100) < limits.trajectory_bytes(spec, 10_000) < limits.INLINE_BYTES
    assert limits.trajectory_bytes(spec, 1_000_000) == limits.INLINE_BYTES
    assert limits.stream_bytes(spec, 100) >= limits.samples_kept(spec) * limits.trajectory_bytes(spec, 100)


def test_the_ledgers_room_grows_with_the_job(job: dict[str, Any]) -> None:
    short, long = (load_job({**job, "algorithm": {"steps": steps}}) for steps in (10, 10_000))
    assert limits.ledger_bytes(short) < limits.ledger_bytes(long) < limits.MAX_LEDGER_BYTES


def test_a_mix_divides_the_rows_by_its_shares(job: dict[str, Any]) -> None:
    parts = [{"name": n, "reasoning_gym": "chain_sum", "share": s} for n, s in (("a", 1), ("b", 1), ("c", 2))]
    data = load_job({**job, "data": {"parts": parts, "size": 101}}).data
    assert [part.name for part in data.tasks] == ["a", "b", "c"]
    assert sum(data.task_rows) == 101
    assert data.task_rows == (25, 25, 51)


def test_one_task_has_all_the_rows(job: dict[str, Any]) -> None:
    data = load_job({**job, "data": {"reasoning_gym": "chain_sum", "size": 7}}).data
    assert data.task_rows == (7,)
