"""The step loop of one job.

    resume -> announce -> [ batch -> step -> snapshot -> (checkpoint -> trained -> prune) ] until the last step

consumes  batched (ledger), bodies from scored by sequence
produces  snapshot, trained (ledger), step events
waits     for a batch, as long as it takes; a paused job lets go of its process instead
unblocked by  the replay buffer's record, an `ending` record, or the job's state

Left out on purpose: the next batch is not prepared while a step computes. With staleness 0 there is none, and with more
the bodies of a batch take milliseconds to read.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from services.trainer import batches, checkpoint, snapshots
from services.trainer.checkpoint import BrokenCheckpoint, Manifest, Standing
from services.trainer.compute import ComputeThread
from services.trainer.folders import remove_unfinished
from services.trainer.hand_over import HandOver
from services.trainer.learner import StepReport
from services.trainer.metrics import step_body
from services.trainer.view import TrainerView
from services.trainer.workbench import Workbench
from shared.job.spec import JobSpec
from shared.wire.bus.api import Bus
from shared.wire.ledger import Ledger
from shared.wire.messages import Batched, Trained, Version

log = logging.getLogger(__name__)
PAUSED_QUIET_SECONDS = 2.0

Tell = Callable[[str, dict[str, Any], int], Awaitable[None]]  # kind, body, step


class Unrecoverable(Exception):
    """The ledger says that steps were trained which nothing on this disk can give back."""


class JobClosed(Exception):
    """The samples of the steps at hand were dropped: the job is over, nothing of it is recorded any more."""


class End(enum.Enum):
    """Why the loop let go."""

    FINISHED = "every step is trained and recorded"
    PAUSED = "the job is paused; what was trained is in a checkpoint"
    CLOSED = "the job was cancelled"


class Loop:
    """`state()` is the job's newest known state; `tell` publishes an event."""

    def __init__(
        self,
        *,
        bus: Bus,
        job: str,
        spec: JobSpec,
        ledger: Ledger,
        view: TrainerView,
        bench: Workbench,
        compute: ComputeThread,
        data_dir: Path,
        state: Callable[[], str],
        tell: Tell,
        gauges: dict[str, float],
        no_buffer_seconds: float,
    ) -> None:
        self.bus, self.job, self.spec = bus, job, spec
        self.ledger, self.view = ledger, view
        self.bench, self.compute = bench, compute
        self.data_dir = data_dir
        self.checkpoints = data_dir / "checkpoints" / job
        self.state, self.tell, self.gauges = state, tell, gauges
        self.hand_over = HandOver(
            bus, job, ledger, view, tell=partial(self.notice, "warning"), silence_seconds=no_buffer_seconds
        )
        self.step = 0  # what the weights in memory are
        self.covered = 0  # the step of the newest checkpoint behind them
        self.announced = -1  # the newest step that engines can fetch
        self.masked: list[str] = []  # since that checkpoint
        self.quiet_since: float | None = None

    async def run(self) -> End:
        try:
            return await self.train_all()
        except JobClosed as closed:
            log.info("%s", closed)
            return End.CLOSED

    async def train_all(self) -> End:
        await self.resume()
        if self.announced < self.step:
            await self.announce()
        while self.step < self.last_step:
            waiting = time.monotonic()
            batch = await self.hand_over.batch(self.step + 1, self.give_up)
            if batch is None:
                break
            await self.train(batch, wait_seconds=time.monotonic() - waiting)
        if self.covered < self.step:
            await self.commit()
        return End.FINISHED if self.step >= self.last_step else End.PAUSED

    @property
    def last_step(self) -> int:
        return self.view.last_step(self.spec.algorithm.steps)

    def give_up(self) -> bool:
        """Whether to stop waiting: the job ends before the step, or is paused and nothing comes any more."""
        if self.step >= self.last_step:
            return True
        if self.state() != "paused":
            self.quiet_since = None
            return False
        self.quiet_since = self.quiet_since or time.monotonic()
        return time.monotonic() - self.quiet_since > PAUSED_QUIET_SECONDS

    async def train(self, batch: Batched, wait_seconds: float) -> None:
        """One step: weights `step - 1` and a batch to weights `step`, announced, and committed when it is time."""
        began = time.monotonic()
        examples = await batches.fetch(
            self.bus,
            self.job,
            batch,
            sampled=self.spec.algorithm.kind != "sft",
            context_length=self.bench.source.context_length,
        )
        fetched = time.monotonic()
        report = await self.compute(partial(self.bench.step, examples, batch.step, self.compute.stopping))
        trained = time.monotonic()
        self.step = batch.step
        self.masked += batches.masked_ids(examples)
        redone = self.announced >= self.step  # workers ahead of the trainer keep their weights
        if not redone:
            await self.announce()
        seconds = {
            "wait": wait_seconds,
            "fetch": fetched - began,
            "train": trained - fetched,
            "snapshot": time.monotonic() - trained,
        }
        await self.report(report, step_body(report, examples, version=self.version, seconds=seconds, redone=redone))
        if self.step % self.spec.checkpoint.every == 0 or self.step == self.last_step:
            await self.commit()

    @property
    def version(self) -> Version:
        return Version(self.step, self.ledger.epoch)

    async def announce(self) -> None:
        """Write the weights in memory as a version and tell weight-broadcast."""
        folder = snapshots.folder_of(self.data_dir, self.job, self.version)
        files = await self.compute(partial(self.bench.write_snapshot, folder))
        await snapshots.publish(self.bus, self.data_dir, self.job, self.version, files)
        self.announced = self.step
        await snapshots.prune(self.bus, self.data_dir, self.job, self.version)

    async def commit(self) -> None:
        """Checkpoint the weights in memory, record it, then prune: in this order."""
        first = self.covered + 1
        digest = self.view.digest(first, self.step)
        if digest is None:
            raise Unrecoverable(f"job {self.job}: the ledger lacks a batch of steps {first} to {self.step}")
        manifest = Manifest(
            job=self.job,
            step=self.step,
            epoch=self.ledger.epoch,
            first=first,
            batches=digest,
            ledger_sequence=self.ledger.sequence,
            masked=self.masked,
        )
        began = time.monotonic()
        await self.compute(partial(self.bench.write_checkpoint, self.checkpoints, manifest))
        self.gauges["checkpoint_seconds"] = time.monotonic() - began
        await self.record(manifest)

    async def record(self, manifest: Manifest) -> None:
        """Append `trained` for a checkpoint that stands on the disk; older ones go only after that was written."""
        keep = self.spec.checkpoint.keep
        oldest = checkpoint.oldest_kept_step(checkpoint.versions(self.checkpoints), keep)
        record = Trained(
            epoch=self.ledger.epoch,
            first=manifest.first,
            last=manifest.step,
            digest=manifest.batches,
            checkpoint=str(manifest.version),
            oldest_kept_step=oldest,
            masked=manifest.masked,
        )
        name = record.checkpoint

        def decide() -> Trained | None:
            if self.view.closed.intersection(range(record.first, record.last + 1)):
                raise JobClosed(
                    f"job {self.job} was cancelled before steps {record.first} to {record.last} were recorded"
                )
            return None if name in self.view.trained else record

        await self.ledger.append(decide)
        self.covered, self.masked = manifest.step, []
        gone = checkpoint.prune(self.checkpoints, keep)
        log.info("job %s: checkpoint %s%s", self.job, name, f", pruned {', '.join(gone)}" if gone else "")

    async def resume(self) -> None:
        """Load the newest checkpoint that reads back whole and belongs to the ledger, or the initial weights."""
        for name in remove_unfinished(self.checkpoints) + remove_unfinished(self.data_dir / "snapshots" / self.job):
            log.info("job %s: removed unfinished %s", self.job, name)
        manifest = await self.newest_good()
        folder = None if manifest is None else self.checkpoints / str(manifest.version)
        await self.compute(partial(self.bench.load, folder))
        if manifest is not None:
            self.step = self.covered = manifest.step
            if str(manifest.version) not in self.view.trained:
                await self.record(manifest)
        done = max((record.last for record in self.view.trained.values()), default=0)
        if self.step < done and self.view.digest(self.step + 1, done) is None:
            raise Unrecoverable(
                f"job {self.job} was trained to step {done}, but no checkpoint in {self.checkpoints} reads back whole "
                f"and the samples of steps {self.step + 1} to {done} are deleted"
            )
        fetchable = await snapshots.newest_fetchable(self.bus, self.data_dir, self.job)
        self.announced = -1 if fetchable is None else fetchable.step
        log.info("job %s: starts at step %d of %d, as epoch %d", self.job, self.step, self.last_step, self.ledger.epoch)

    async def newest_good(self) -> Manifest | None:
        for version in checkpoint.versions(self.checkpoints):
            folder = self.checkpoints / str(version)
            try:
                manifest = await self.compute(partial(checkpoint.verify, folder))
            except BrokenCheckpoint as error:
                await self.notice("warning", f"checkpoint {version} is broken and set aside: {error}")
                checkpoint.set_aside(folder)
                continue
            recorded = self.view.trained.get(str(version))
            digest = self.view.digest(manifest.first, manifest.step)
            standing = checkpoint.standing(manifest, recorded, digest, self.ledger.epoch)
            if standing is not Standing.FOREIGN:
                return manifest
            await self.notice("warning", f"checkpoint {version} is set aside: {standing.value}")
            checkpoint.set_aside(folder)
        return None

    async def report(self, report: StepReport, body: dict[str, Any]) -> None:
        self.gauges.update(
            step=float(self.step),
            loss=report.loss,
            reward_mean=body["reward_mean"],
            tokens_per_second=body["tokens_per_second"],
        )
        log.info(
            "job %s: step %d of %d, loss %.4f, reward %.3f, %d tokens in %.2f s%s",
            self.job, self.step, self.last_step, report.loss, body["reward_mean"], report.trained_tokens,
            body["seconds"]["train"], " (again)" if body["redone"] else "",
        )  # fmt: skip
        await self.tell("step", body, self.step)
        if not report.applied:
            await self.notice(
                "warning", f"step {self.step}: the gradient was not finite; the weights stay as they were"
            )

    async def notice(self, level: str, text: str) -> None:
        log.warning("job %s: %s", self.job, text)
        await self.tell("notice", {"level": level, "text": text}, self.step)
