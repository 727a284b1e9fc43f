"""Scored samples joined to groups by id, beside the ledger's view of the same groups.

Pure: headers and records in, any interleaving, state out. Of two copies of one sample the lowest sequence wins,
always; the others are counted. What needs a decision is kept in three small sets, so that an arrival costs the same
whatever is in flight:

    complete   every sample has a valid score
    troubled   a sample gave up, has an invalid score, or is dead: the group can never be complete
    stale      a trained token is older than the next step allows, and will only get older
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from services.replay_buffer.ledger_view import LedgerView
from shared.wire.messages import (
    Attempt,
    BadMessage,
    Batched,
    Dead,
    Dropped,
    GaveUp,
    Issued,
    LedgerRecord,
    SampleKey,
)

NO_VERSION = -1  # of a demonstration: nothing was sampled, so nothing can be too old


@dataclass(frozen=True)
class ScoredSample:
    """One message in the scored stream, by its headers. `error` says why `valid` is false."""

    group: int
    index: int
    sequence: int
    attempt: Attempt
    valid: bool = True
    reward: float = 0.0
    digest: str = ""
    oldest_step: int = NO_VERSION
    tokens: int = 0
    error: str = ""


def read_headers(job: str, subject: str, sequence: int, headers: Mapping[str, str]) -> ScoredSample:
    """The sample of a scored message.

    Headers that cannot be read make the sample that the subject names an invalid one: it is settled with the reason,
    where a message set aside would keep its group waiting for ever. Raises `BadMessage` for a foreign subject.
    """
    parts = subject.split(".")
    if len(parts) != 4 or not (parts[2].isdigit() and parts[3].isdigit()):
        raise BadMessage(f"subject {subject!r} is not scored.<job>.<group>.<index>")
    key = SampleKey(job, int(parts[2]), int(parts[3]))
    try:
        if headers.get("Sample") != key.id:
            raise BadMessage(f"header Sample is {headers.get('Sample')!r}")
        reward = float(headers["Reward"])
        valid = headers["Valid"] == "1"
        oldest = headers["Oldest-Step"]
        return ScoredSample(
            group=key.group,
            index=key.index,
            sequence=sequence,
            attempt=Attempt.parse(headers["Attempt"]),
            valid=valid and math.isfinite(reward),
            reward=reward,
            digest=headers["Digest"],
            oldest_step=int(oldest) if oldest else NO_VERSION,
            tokens=int(headers["Tokens"]),
            error=f"the reward is {reward}" if valid and not math.isfinite(reward) else "",
        )
    except (KeyError, ValueError) as error:
        why = f"header {error} is missing" if isinstance(error, KeyError) else str(error)
        return ScoredSample(
            group=key.group, index=key.index, sequence=sequence, attempt=Attempt(0, 0), valid=False,
            error=f"scored message {sequence} has unreadable headers: {why}",
        )  # fmt: skip


class Buffer:
    """The whole state of one job's buffer. `read` takes ledger records, `add` takes scored samples."""

    def __init__(self, job: str, staleness: int) -> None:
        self.job = job
        self.staleness = staleness
        self.view = LedgerView(job)
        self.scored: dict[int, dict[int, ScoredSample]] = {}  # groups that are open, or not issued as far as read
        self.present: set[int] = set()  # groups with messages in the stream
        self.complete: set[int] = set()
        self.troubled: set[int] = set()
        self.stale: set[int] = set()
        self.late_copies = 0

    @property
    def next_step(self) -> int:
        return self.view.last_batched + 1

    @property
    def oldest_allowed(self) -> int:
        """The oldest version that the next step may train on."""
        return self.next_step - 1 - self.staleness

    def expected_oldest(self, number: int) -> int | None:
        """The oldest version among the group's trained tokens; while some are missing, as far as can be expected.

        None: a complete group of demonstrations.
        """
        steps = [s.oldest_step for s in self.scored.get(number, {}).values() if s.oldest_step != NO_VERSION]
        if number not in self.complete:
            steps.append(self.view.open[number].version_step)
        return min(steps, default=None)

    def deletable(self) -> set[int]:
        """Groups whose messages are still in the stream and that nobody will ask for again."""
        return {number for number in self.present if number in self.view.expendable}

    def deleted(self, number: int) -> None:
        self.present.discard(number)

    def add(self, sample: ScoredSample) -> bool:
        """Take a scored sample; False for a copy that came too late to count."""
        self.present.add(sample.group)
        group = self.view.open.get(sample.group)
        settled = sample.group in self.view.expendable or sample.group in self.view.step_of
        if settled or (group is not None and (sample.index in group.settled or sample.index >= group.n)):
            self.late_copies += 1
            return False
        siblings = self.scored.setdefault(sample.group, {})
        known = siblings.get(sample.index)
        if known is not None:
            self.late_copies += 1
            if known.sequence <= sample.sequence:
                return False
        siblings[sample.index] = sample
        self._weigh(sample.group)
        return True

    def read(self, sequence: int, record: LedgerRecord) -> None:
        """Take a ledger record."""
        self.view.fold(sequence, record)
        match record:
            case Issued():
                self._weigh(record.group)
            case GaveUp():
                self._weigh(SampleKey.parse(record.sample).group)
            case Dropped() | Dead():
                for number in {SampleKey.parse(sample).group for sample in record.samples}:
                    self._weigh(number)
            case Batched():
                for number in {SampleKey.parse(sample.sample).group for sample in record.samples}:
                    self._weigh(number)
                for number in self.scored.keys() & self.view.open.keys():
                    self._weigh(number)  # one step on, everything is one version older
            case _:
                pass

    def _weigh(self, number: int) -> None:
        """Put a group in the sets it belongs to, or forget it."""
        for members in (self.complete, self.troubled, self.stale):
            members.discard(number)
        group = self.view.open.get(number)
        if group is None:
            if number in self.view.expendable or number in self.view.step_of:
                self.scored.pop(number, None)
            return
        scored = self.scored.get(number, {})
        for index in [i for i in scored if i >= group.n or i in group.settled]:
            del scored[index]
        invalid = any(not sample.valid for sample in scored.values())
        given_up = any(index not in scored for index in group.gave_up)
        if group.settled or invalid or given_up:
            self.troubled.add(number)
        elif len(scored) == group.n:
            self.complete.add(number)
        if any(NO_VERSION < sample.oldest_step < self.oldest_allowed for sample in scored.values()):
            self.stale.add(number)
            self.complete.discard(number)
