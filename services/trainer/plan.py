"""Which jobs get a process, which lose theirs, and when a job has failed too often. Pure: the clock is an argument."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from shared.wire.messages import JobRecord

STARTED_STATES = ("running", "pausing")
KEPT_STATES = ("running", "pausing", "paused")  # a process of a paused job lets go by itself once all is saved
FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 0.5, 30.0
MAX_FAILURES = 5  # in a row, without a version in between
MAX_KILLS = 50  # a kill says less about the job than an error does


@dataclass
class Attempts:
    """What became of the processes of one job."""

    failures: int = 0
    kills: int = 0
    not_before: float = 0.0
    finished: bool = False  # done with the job, until the job leaves the states and comes back
    progress: int = -1  # the newest version's place in the snapshot stream, when last looked at
    reason: str = ""

    @property
    def hopeless(self) -> bool:
        return self.failures >= MAX_FAILURES or self.kills >= MAX_KILLS

    def ended_well(self) -> None:
        self.finished = True
        self.failures = self.kills = 0

    def ended_badly(self, *, killed: bool, progress: int, reason: str, now: float) -> None:
        """Count a failure, from anew when there was progress; the next try waits twice as long as the last."""
        if progress > self.progress:
            self.failures = self.kills = 0
        self.progress = max(self.progress, progress)
        self.reason = reason
        if killed:
            self.kills += 1
        else:
            self.failures += 1
        delay = FIRST_DELAY_SECONDS * 2 ** min(self.failures + self.kills - 1, 10)
        self.not_before = now + min(delay, LONGEST_DELAY_SECONDS)

    def try_again(self, now: float) -> None:
        """Somebody else holds the job, or the process lost its lock: no failure."""
        self.not_before = now + FIRST_DELAY_SECONDS


@dataclass
class Plan:
    """`start` oldest job first; `stop` those that run for no reason."""

    start: list[str] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)


def plan(
    jobs: Iterable[JobRecord], running: Collection[str], attempts: dict[str, Attempts], *, slots: int, now: float
) -> Plan:
    """What to do now, given the jobs, the jobs that have a process, and how the earlier processes ended."""
    records = sorted(jobs, key=lambda record: (record.created_at, record.id))
    kept = {record.id for record in records if record.state in KEPT_STATES}
    result = Plan(stop=sorted(set(running) - kept))
    free = slots - len(running)
    for record in records:
        if record.state not in STARTED_STATES or record.id in running:
            continue
        tried = attempts.get(record.id, Attempts())
        if free > 0 and not tried.finished and not tried.hopeless and tried.not_before <= now:
            result.start.append(record.id)
            free -= 1
    return result
