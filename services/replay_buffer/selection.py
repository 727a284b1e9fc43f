"""Which groups make the batch of a step, or why there is none yet. Pure: the caller brings the clock.

The batch is the `groups_per_step` lowest-numbered complete groups, in (group, index) order. Pace rather than discard:
a group that would be too old for the next step is *due*; due groups go first, and an incomplete one is waited for, up
to `pace_seconds` after enough groups were complete (one straggler must not hold back the rest for ever). A group is
due at one step only: passed over once, it is taken if its tokens turn out young enough, and not waited for again.

With staleness 0 every open group is due and the wait has no limit: the batch is the lowest-numbered open groups,
whatever came first.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.replay_buffer.buffer import Buffer
from shared.wire.messages import Batched, BatchedSample, SampleKey


@dataclass(frozen=True)
class Policy:
    """The numbers of the job file, and the one setting, that decide."""

    groups_per_step: int
    staleness: int
    steps: int
    pace_seconds: float = 30.0


@dataclass(frozen=True)
class Ready:
    """The batch stands in the ledger at `sequence`."""

    sequence: int


@dataclass(frozen=True)
class Form:
    """These groups, in order, are the batch; it has to be recorded before it is handed over."""

    groups: tuple[int, ...]


@dataclass(frozen=True)
class Wait:
    """No batch yet. `paced`: enough groups are complete, and a due one is waited for."""

    reason: str
    paced: bool = False


@dataclass(frozen=True)
class Refused:
    """There will be no such batch for this trainer."""

    reason: str


Answer = Ready | Form | Wait | Refused


def answer(
    buffer: Buffer, policy: Policy, *, trainer_epoch: int, step: int, waited_seconds: float, cancelling: bool = False
) -> Answer:
    """The answer to a trainer of `trainer_epoch` that asks for the batch of `step`."""
    view = buffer.view
    if trainer_epoch < view.trainer_epoch:
        return Refused(f"trainer epoch {trainer_epoch} is over: epoch {view.trainer_epoch} has begun")
    if trainer_epoch > view.trainer_epoch:
        return Wait(f"trainer epoch {trainer_epoch} is not in the ledger yet (newest is {view.trainer_epoch})")
    if cancelling:
        return Refused("the job is being cancelled")
    last = view.last_step(policy.steps)
    if not 1 <= step <= last:
        return Refused(f"step {step} is not one of this job's steps 1..{last}")
    recorded = view.batch_sequence(step)
    if recorded is not None:
        return Ready(recorded)
    if step != buffer.next_step:
        return Refused(f"step {step} cannot come yet: the next batch is of step {buffer.next_step}")
    return choose(buffer, policy, waited_seconds)


def choose(buffer: Buffer, policy: Policy, waited_seconds: float) -> Form | Wait:
    """The batch of the next step."""
    wanted = policy.groups_per_step
    if policy.staleness == 0:
        return _in_order(buffer, wanted)
    if len(buffer.complete) < wanted:
        return Wait(_too_few(buffer, wanted))
    due = {number for number in buffer.complete if buffer.expected_oldest(number) == buffer.oldest_allowed}
    if waited_seconds < policy.pace_seconds:
        late = _due_and_incomplete(buffer)
        ranked = sorted(buffer.complete | late, key=lambda number: (number not in due | late, number))
        missing = [number for number in ranked[:wanted] if number in late]
        if missing:
            return Wait(
                f"enough groups are complete, but {_progress(buffer, missing[0])} and would be too old for the next "
                f"step; waiting for it up to {policy.pace_seconds:g} s ({waited_seconds:.0f} s so far)",
                paced=True,
            )
    ranked = sorted(buffer.complete, key=lambda number: (number not in due, number))
    return Form(tuple(sorted(ranked[:wanted])))


def batch(buffer: Buffer, groups: tuple[int, ...], trainer_epoch: int) -> Batched:
    """The record of the next step's batch, in (group, index) order."""
    samples = [
        BatchedSample(
            sample=SampleKey(buffer.job, number, index).id,
            attempt=scored.attempt,
            sequence=scored.sequence,
            digest=scored.digest,
            reward=scored.reward,
            oldest_step=scored.oldest_step,
            tokens=scored.tokens,
        )
        for number in sorted(groups)
        for index, scored in sorted(buffer.scored[number].items())
    ]
    return Batched(epoch=0, step=buffer.next_step, trainer_epoch=trainer_epoch, samples=samples)


def _in_order(buffer: Buffer, wanted: int) -> Form | Wait:
    lowest = sorted(buffer.view.open.keys() - buffer.troubled - buffer.stale)[:wanted]
    if len(lowest) < wanted or not buffer.complete.issuperset(lowest):
        return Wait(_too_few(buffer, wanted))
    return Form(tuple(lowest))


def _due_and_incomplete(buffer: Buffer) -> set[int]:
    possible = buffer.view.open.keys() - buffer.complete - buffer.troubled - buffer.stale
    return {number for number in possible if buffer.expected_oldest(number) == buffer.oldest_allowed}


def _too_few(buffer: Buffer, wanted: int) -> str:
    text = f"{len(buffer.complete)} of {wanted} groups are complete"
    waiting = buffer.view.open.keys() - buffer.complete
    if not waiting:
        return f"{text}; no other group has been issued"
    return f"{text}; {_progress(buffer, min(waiting))}"


def _progress(buffer: Buffer, number: int) -> str:
    group = buffer.view.open[number]
    scored = len(buffer.scored.get(number, {}))
    return f"group {number} (issued at version {group.version_step}) has {scored} of {group.n} samples scored"
