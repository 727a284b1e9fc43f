"""What the buffer has to write next so that every sample ends in exactly one place. Pure.

One record at a time, each decided on what the ledger says by then: a process killed between any two of them goes on
where it stopped, because the next record follows from the ones before.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.replay_buffer.buffer import Buffer
from services.replay_buffer.selection import Policy
from shared.wire.messages import Dead, Dropped, Retired, SampleKey

STALE, SIBLING_DEAD, JOB_ENDED = "stale", "sibling dead", "job ended"
MAX_IDS = 2048  # a record takes no further group beyond so many ids: far under what the broker takes
MAX_ERROR = 500


def settlement(buffer: Buffer, policy: Policy, *, cancelling: bool = False) -> Dead | Dropped | Retired | None:
    """The next record, or None when everything that can be settled is."""
    return (
        _dead(buffer)
        or _dropped(buffer, buffer.troubled, SIBLING_DEAD)
        or _dropped(buffer, buffer.stale, STALE)
        or _retired(buffer)
        or _leftovers(buffer, policy, cancelling)
    )


def ended(buffer: Buffer, policy: Policy, *, cancelling: bool) -> bool:
    """No further sample will be trained."""
    return cancelling or buffer.view.trained_to >= buffer.view.last_step(policy.steps)


def _dead(buffer: Buffer) -> Dead | None:
    ids: list[str] = []
    errors: list[str] = []
    for number in sorted(buffer.troubled):
        if len(ids) >= MAX_IDS:
            break
        group = buffer.view.open[number]
        scored = buffer.scored.get(number, {})
        causes = {index: error for index, error in group.gave_up.items() if index not in scored}
        causes |= {index: s.error or "the score is invalid" for index, s in scored.items() if not s.valid}
        for index in sorted(causes):
            ids.append(SampleKey(buffer.job, number, index).id)
            errors.append(causes[index][:MAX_ERROR])
    return Dead(epoch=0, samples=ids, errors=errors) if ids else None


def _retired(buffer: Buffer) -> Retired | None:
    view = buffer.view
    if view.retired_to >= view.trained_to:
        return None
    return Retired(epoch=0, first=view.retired_to + 1, last=view.trained_to)


def _leftovers(buffer: Buffer, policy: Policy, cancelling: bool) -> Dropped | None:
    """When the job has ended: every sample that is not trained, whether anybody worked on it or not."""
    if not ended(buffer, policy, cancelling=cancelling):
        return None
    view = buffer.view
    untrained = {number for number, step in view.step_of.items() if step > view.trained_to}
    return _dropped(buffer, untrained | view.open.keys(), JOB_ENDED)


def _dropped(buffer: Buffer, groups: Iterable[int], reason: str) -> Dropped | None:
    """Whole groups: what of them is not settled yet."""
    ids: list[str] = []
    for number in sorted(groups):
        if len(ids) >= MAX_IDS:
            break
        ids += [SampleKey(buffer.job, number, index).id for index in buffer.view.unsettled(number)]
    return Dropped(epoch=0, samples=ids, reason=reason) if ids else None
