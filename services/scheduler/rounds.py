"""The evaluation rounds of one job as they run: which is open, at which version, what is still wanted. Pure.

    due ──(its version can be had)──► open ──(every answer graded or lost)──► closed, to be recorded
     └───(its version is gone)──────► missed, recorded with what there is

Rounds of one step are open together; the next step's wait. Recorded rounds are forgotten but for their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from services.scheduler.evaluation import Answer, Round, summary
from services.scheduler.leasing import Candidate
from services.scheduler.work import Work
from shared.wire.messages import SampleKey, Version


@dataclass
class OpenRound:
    round: Round
    version: Version
    work: Work
    opened_at: float
    missing_since: float | None = None


class Rounds:
    """Fed with answers and with the versions that can be had; asked what to lease and what is complete."""

    def __init__(self, job: str, schedule: Callable[[], list[Round]], parts: list[str], max_attempts: int) -> None:
        self._job, self._schedule, self._parts, self._max_attempts = job, schedule, parts, max_attempts
        self._answers: dict[int, dict[tuple[int, int], Answer]] = {}
        self._failures: dict[SampleKey, int] = {}
        self.recorded: set[int] = set()
        self.open: dict[int, OpenRound] = {}
        self.doubtful = False  # an earlier holder may have leased samples of any round

    # --- what is told -----------------------------------------------------------------------------------------------

    def add_answer(self, key: SampleKey, found: Answer, now: float) -> None:
        """A graded answer, in stream order: the first copy counts."""
        number = key.eval_round
        if number is None or number in self.recorded:
            return
        self._answers.setdefault(number, {}).setdefault((key.group, key.index), found)
        if number in self.open:
            self.open[number].work.finish(key, now)

    def failed(self, key: SampleKey, counts: bool, not_before: float) -> bool:
        """An attempt ended without an answer; True when that was the last attempt."""
        found = self.open.get(-1 if key.eval_round is None else key.eval_round)
        if found is None:
            return False
        self._failures[key] = self._failures.get(key, 0) + counts
        if self._failures[key] >= self._max_attempts:
            found.work.lose(key)
            return True
        found.work.put_back(key, not_before)
        return False

    def mark_recorded(self, number: int) -> None:
        self.recorded.add(number)
        self.open.pop(number, None)
        self._answers.pop(number, None)
        for key in [key for key in self._failures if key.eval_round == number]:
            del self._failures[key]

    # --- what follows -----------------------------------------------------------------------------------------------

    def next_due(self, newest_step: int) -> list[Round]:
        """The rounds to open next: those of the earliest step that has come and is not recorded."""
        if self.open:
            return []
        due = [r for r in self._schedule() if r.step <= newest_step and r.number not in self.recorded]
        return [r for r in due if r.step == due[0].step]

    def open_rounds(self, rounds: Iterable[Round], version: Version, now: float) -> None:
        for each in rounds:
            number = each.number
            work = Work(lambda group, index, number=number: SampleKey(self._job, group, index, number))  # type: ignore[misc]
            for prompt in range(each.prompts):
                work.open(prompt, each.samples, doubtful=self.doubtful)
            for prompt, index in self._answers.get(number, {}):
                work.finish(SampleKey(self._job, prompt, index, number), now)
            self.open[number] = OpenRound(each, version, work, opened_at=now)

    def awaited_step(self, now: float, held_after_seconds: float | None) -> int | None:
        """The earliest step whose evaluation training must not leave behind, or None.

        Only the newest versions can be fetched by everybody. A round that has been open for `held_after_seconds` is
        safe: by then its version is known to be wanted. None: safe only once it is recorded.
        """
        for due in self._schedule():
            if due.number in self.recorded:
                continue
            found = self.open.get(due.number)
            if found is None or held_after_seconds is None or now - found.opened_at < held_after_seconds:
                return due.step
        return None

    def complete(self, now: float, can_be_had: Callable[[Version], bool], patience_seconds: float) -> list[OpenRound]:
        """Open rounds that have nothing left to wait for: all is graded or lost, or their version is gone for good."""
        done = []
        for number, each in self.open.items():
            answered = len(self._answers.get(number, {}))
            if answered + each.work.num_lost >= each.round.size:
                done.append(each)
            elif can_be_had(each.version):
                each.missing_since = None
            elif each.missing_since is None:
                each.missing_since = now
            elif now - each.missing_since > patience_seconds and not each.work.num_leased:
                done.append(each)
        return done

    def body(self, round: Round, version: Version | None) -> dict[str, Any]:
        """The summary of a round, as far as it is answered."""
        return summary(round, version, self._answers.get(round.number, {}), self._parts)

    # --- questions --------------------------------------------------------------------------------------------------

    @property
    def version(self) -> Version | None:
        """The version that open rounds hold workers at."""
        return next((each.version for each in self.open.values()), None)

    @property
    def samples_left(self) -> int:
        return sum(each.work.num_left for each in self.open.values())

    @property
    def all_recorded(self) -> bool:
        return all(each.number in self.recorded for each in self._schedule())

    def work_of(self, key: SampleKey) -> Work | None:
        found = self.open.get(-1 if key.eval_round is None else key.eval_round)
        return None if found is None else found.work

    def waiting(self) -> Iterable[Candidate]:
        for each in self.open.values():
            yield from each.work.waiting()

    def progress(self) -> dict[str, Any]:
        """What people are shown while rounds are open."""
        return {
            "version": "" if self.version is None else str(self.version),
            "rounds": sorted(self.open),
            "samples": sum(each.round.size for each in self.open.values()),
            "graded": sum(len(self._answers.get(number, {})) for number in self.open),
        }
