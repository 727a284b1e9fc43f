from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shared.job.load import BadJob, load_job

Job = dict[str, Any]


@pytest.fixture
def job() -> Job:
    """The shortest job file there is, as plain data."""
    return {
        "name": "sums",
        "model": "tiny",
        "data": {"reasoning_gym": "chain_sum"},
        "reward": [{"name": "solved", "kind": "exact"}],
    }


@pytest.fixture
def problems(job: Job) -> Callable[..., dict[str, str]]:
    """The problems of that job with some sections changed, by path; empty when there are none."""

    def find(**changes: Any) -> dict[str, str]:
        try:
            load_job({**job, **changes})
        except BadJob as error:
            return {problem.path: problem.message for problem in error.problems}
        return {}

    return find
