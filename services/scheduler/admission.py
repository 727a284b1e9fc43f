"""How many groups may be issued now. Pure.

`in_system` bounds how far generation runs ahead of training: with B groups a step and staleness S it stays under
(S + 1) * B. Pacing here is what keeps samples fresh; dropping stale ones later is only the guard. All that may be
issued is issued at once, so which groups exist never depends on when a worker asks.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.ledger_view import LedgerView


@dataclass(frozen=True)
class Plan:
    """What the job file says about amounts. `groups_available` None: the data never ends."""

    groups_per_step: int
    staleness: int
    steps: int
    groups_available: int | None = None

    @property
    def groups_at_once(self) -> int:
        return (self.staleness + 1) * self.groups_per_step


def last_step(view: LedgerView, plan: Plan) -> int:
    """The job's last step: an early end from the ledger, else what the file asks for."""
    return view.ending.last_step if view.ending is not None else plan.steps


def admissible(view: LedgerView, plan: Plan, applied_step: int, up_to_step: int | None = None) -> int:
    """How many more groups may be issued: room under the staleness rule, what the steps to come need (dropped and
    dead groups are replaced; `up_to_step` holds training back there), and what the data still has."""
    if view.ending is not None:
        return 0
    room = plan.groups_at_once - view.in_system(applied_step)
    last = plan.steps if up_to_step is None else min(plan.steps, up_to_step)
    needed = last * plan.groups_per_step - (view.issued - view.gone)
    left = needed if plan.groups_available is None else plan.groups_available - view.issued
    return max(0, min(room, needed, left))


def data_ended(view: LedgerView, plan: Plan) -> bool:
    """The data has no further group and what is open cannot fill another batch."""
    if plan.groups_available is None or view.issued < plan.groups_available or view.ending is not None:
        return False
    return view.batched_step < plan.steps and len(view.open) < plan.groups_per_step
