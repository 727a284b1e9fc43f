"""Plain records of a job called `j`, and a view that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from services.scheduler.ledger_view import LedgerView
from shared.wire.messages import Attempt, Batched, BatchedSample, Issued, LedgerRecord


class Records:
    """Short ways to write ledger records."""

    def issued(self, group: int, n: int = 2, version_step: int = 0) -> Issued:
        return Issued(epoch=1, group=group, row=group, row_digest=f"row {group}", n=n, version_step=version_step)

    def batched(self, step: int, groups: Iterable[int], n: int = 2) -> Batched:
        samples = [
            BatchedSample(sample=f"j/{group}/{index}", attempt=Attempt(1, 1), sequence=1, digest="", reward=0.0)
            for group in groups
            for index in range(n)
        ]
        return Batched(epoch=1, step=step, trainer_epoch=1, samples=samples)

    def ids(self, *groups: int, n: int = 2) -> list[str]:
        return [f"j/{group}/{index}" for group in groups for index in range(n)]


@pytest.fixture
def records() -> Records:
    return Records()


@pytest.fixture
def read() -> Callable[..., LedgerView]:
    """A view that has read these records in order."""

    def fold(*found: LedgerRecord, view: LedgerView | None = None) -> LedgerView:
        view = view or LedgerView()
        for record in found:
            view.apply(view.records + 1, record)
        return view

    return fold
