"""Supervised data as trajectories: the row's answer stands where a sampled one would. Pure.

A demonstration has no log-probabilities and no versions, so it is never stale; it goes through reward, buffer and
ledger like any sample.
"""

from __future__ import annotations

from services.scheduler.data.rows import Row
from services.scheduler.prompts import Prompts
from shared.wire.messages import Attempt, SampleKey, Sampling, Trajectory

FINISH_REASON = "demonstration"


def demonstration(key: SampleKey, attempt: Attempt, row: Row, prompts: Prompts, teller: str, now: float) -> Trajectory:
    """The trajectory of a right answer."""
    return Trajectory(
        sample=key.id,
        attempt=attempt,
        segments=[prompts.prompt(row), prompts.answer(row)],
        sampling=Sampling(max_tokens=0),
        finish_reason=FINISH_REASON,
        text=row.answer,
        worker=teller,
        started_at=now,
        finished_at=now,
        digests=prompts.digests(row),
        row=row.fields,
    )
