"""Everything the scheduler knows of one job while it holds its role, and the questions that need several parts of it.

No I/O: the ledger's records, the workers' reports and the announcements are brought here by `job_loop`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from services.scheduler.admission import Plan, admissible, data_ended, last_step
from services.scheduler.data.dataset import Dataset
from services.scheduler.data.rows import DataError, Row
from services.scheduler.evaluation import SAMPLED, Round, schedule
from services.scheduler.leases import LeaseTable, Returned
from services.scheduler.ledger_view import LedgerView
from services.scheduler.progress import Rate, Standing
from services.scheduler.prompts import Prompts
from services.scheduler.rounds import Rounds
from services.scheduler.verdicts import too_many_dead
from services.scheduler.versions import Versions
from services.scheduler.work import Work
from shared.job.spec import JobSpec
from shared.wire.messages import SampleKey

VERSION_HELD_AFTER_SECONDS = 5.0  # two heartbeats, in which weight-broadcast hears that a version is wanted


@dataclass(frozen=True)
class Material:
    """What a job is made of, once model and data have been read."""

    dataset: Dataset
    prompts: Prompts


@dataclass
class JobState:
    """`view` is the ledger; the rest is what an interrupted holder loses and the next one finds out again."""

    job: str
    spec: JobSpec
    view: LedgerView
    table: LeaseTable
    material: Material
    job_state: str = "running"
    versions: Versions = field(default_factory=Versions)
    rows: dict[int, Row] = field(default_factory=dict)  # of open groups
    returns: deque[Returned] = field(default_factory=deque)  # leases that ended and are not dealt with yet
    token_rate: Rate = field(default_factory=Rate)
    _seen: tuple[int, int, str] = (-1, 0, "")
    goal_reached: str = ""  # what an evaluation said, if it was what the job is to stop at

    def __post_init__(self) -> None:
        algorithm, data = self.spec.algorithm, self.spec.data
        rows = len(self.material.dataset.training)
        self.plan = Plan(
            groups_per_step=algorithm.groups_per_step,
            staleness=algorithm.staleness,
            steps=algorithm.steps,
            groups_available=None if data.epochs is None else rows * data.epochs,
        )
        self.work = Work(lambda group, index: SampleKey(self.job, group, index))
        cached = lru_cache(maxsize=2)(lambda last: schedule(self.spec.evaluation, last))

        def rounds() -> list[Round]:
            return cached(self.last_step)

        self.rounds = Rounds(
            self.job, rounds, [row.part for row in self.material.dataset.held_out], self.spec.limits.max_attempts
        )

    # --- questions --------------------------------------------------------------------------------------------------

    @property
    def supervised(self) -> bool:
        return self.spec.algorithm.kind == "sft"

    @property
    def last_step(self) -> int:
        return last_step(self.view, self.plan)

    @property
    def more_batches(self) -> bool:
        """Whether training samples are still of use; what is open after an early end is not."""
        return self.view.batched_step < self.last_step

    @property
    def applied_step(self) -> int:
        """Demonstrations are made by no version: a batch is as good as applied."""
        return self.view.batched_step if self.supervised else self.versions.applied_step(self.view.applied_floor)

    @property
    def oldest_step(self) -> int:
        """The oldest version that may still make training tokens."""
        return max(0, self.versions.newest_step - self.plan.staleness)

    @property
    def num_waiting(self) -> int:
        """Samples that wait for a worker."""
        training = self.work.num_waiting if self.more_batches and not self.supervised else 0
        return training + sum(each.work.num_waiting for each in self.rounds.open.values())

    def admissible(self, now: float) -> int:
        if self.job_state != "running":
            return 0
        return admissible(self.view, self.plan, self.applied_step, self._up_to_step(now))

    def _up_to_step(self, now: float) -> int | None:
        """How far training may go before the next evaluation has its version.

        A job that stops at a goal goes no further than what is being evaluated, so that where it stops does not
        depend on timing, and demonstrations, which wait for no worker, likewise. Other jobs stay one step ahead until
        the round has been open long enough for its version to be kept for it.
        """
        if self.supervised or self.spec.algorithm.stop_at is not None:
            awaited = self.rounds.awaited_step(now, None)
            return None if awaited is None else max(1, awaited)
        awaited = self.rounds.awaited_step(now, VERSION_HELD_AFTER_SECONDS)
        return None if awaited is None else awaited + 1

    def wants(self, key: SampleKey) -> bool:
        """The sample is open, and its trajectory is not stored as far as is known."""
        if self.job_state in ("cancelling", "failed"):
            return False
        if key.eval_round is None and not (self.more_batches and self.view.wants(key.group, key.index)):
            return False
        work = self.work_of(key)
        return work is not None and work.wants(key)

    def work_of(self, key: SampleKey) -> Work | None:
        return self.work if key.eval_round is None else self.rounds.work_of(key)

    def row_of(self, key: SampleKey) -> Row:
        """The row behind a sample; `DataError` when the data is not what was issued."""
        if key.eval_round is not None:
            return self.material.dataset.held_out[key.group]
        row = self.rows.get(key.group)
        if row is None:
            issued = self.view.open[key.group]
            row = self.material.dataset.source.row(issued.row)
            if row.digest != issued.row_digest:
                raise DataError(
                    f"{row.where} is not what it was when group {key.group} was issued: "
                    "the data set was changed under the job"
                )
            self.rows[key.group] = row
        return row

    # --- what follows -----------------------------------------------------------------------------------------------

    def open_group(self, group: int, *, doubtful: bool = False, not_before: float = 0.0) -> None:
        self.work.open(group, self.view.open[group].n, doubtful=doubtful, not_before=not_before)

    def note_evaluation(self, body: Mapping[str, Any]) -> None:
        """A recorded round may be what the job was to stop at."""
        goal = self.spec.algorithm.stop_at
        if goal is None or body.get("mode") != SAMPLED or not body.get("graded"):
            return
        rate = float(body["solve_rate"])
        if rate >= goal.solve_rate:
            version = body.get("version")
            self.goal_reached = f"version {version} has a solve rate of {rate:.3f}, the goal is {goal.solve_rate:g}"

    def forget_closed(self) -> None:
        """What the ledger, a round's end or the job's state has closed needs no work and no lease any more."""
        seen = (self.view.records, len(self.rounds.recorded), self.job_state)
        if seen == self._seen:
            return
        self._seen = seen
        if len(self.work.groups) != len(self.view.open) or self.rows.keys() - self.view.open.keys():
            self.work.keep_only(self.view.open)
            for group in self.rows.keys() - self.view.open.keys():
                del self.rows[group]
        self.table.revoke(lambda key: not self.wants(key))

    def next_job_state(self) -> tuple[str, str] | None:
        """The state that the job has come to by itself, with the reason."""
        view, out = self.view, bool(self.table.leases)
        if self.job_state == "cancelling":
            return ("cancelled", "") if not out and not view.unsettled_groups else None
        if reason := too_many_dead(view, self.spec.limits.max_dead_rate):
            return "failed", reason
        if data_ended(view, self.plan) and not view.batched_step:
            return "failed", (
                f"the data ended after {view.issued} groups, of which {view.gone} were dropped: too few for one step "
                f"of {self.plan.groups_per_step}"
            )
        if view.trained_step >= self.last_step and not view.unsettled_groups and self.rounds.all_recorded:
            return "completed", view.ending.reason if view.ending is not None else ""
        if self.job_state == "pausing" and not out:
            return "paused", ""
        return None

    def standing(self) -> Standing:
        view = self.view
        return Standing(
            worker_steps=[-1 if w.version is None else w.version.step for w in self.table.workers.values()],
            oldest_step=self.oldest_step,
            newest_step=self.versions.newest_step,
            waiting=self.work.num_waiting,
            leased=len(self.table.leases),
            finished=self.work.num_finished,
            batched_step=view.batched_step,
            trained_step=view.trained_step,
            last_step=self.last_step,
            open_groups=len(view.open),
            unsettled_groups=view.unsettled_groups,
            evaluation_left=self.rounds.samples_left,
            cancelling=self.job_state == "cancelling",
            needs_workers=not self.supervised or bool(self.spec.evaluation.prompts),
        )
