"""One job's trainer, a process of its own: `python -m services.trainer.worker JOB`, started by the supervisor.

Takes the lock `trainer.<job>`, opens the ledger, then loads torch and runs the loop. Exit status: 0 done with the job
for now (finished, or paused), 1 failed, with its reason as the last line, 75 somebody else holds the job: ask again.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import enum
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import msgspec

from services.trainer.config import Settings
from shared.wire.bus.api import Lock
from shared.wire.jobs import change_job, get_job, watch_jobs
from shared.wire.ledger import Fenced, Ledger
from shared.wire.messages import JobRecord
from shared.wire.service import Service, run
from shared.wire.topics import lock_key

log = logging.getLogger(__name__)

ROLE = "trainer"
TRAINED_STATES = ("running", "pausing", "paused")
LOCK_POLL_SECONDS = 0.25
PR_SET_PDEATHSIG = 1


class Status(enum.IntEnum):
    """How the process ends."""

    DONE = 0
    FAILED = 1
    AGAIN = 75  # EX_TEMPFAIL


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="trainer worker", description="Train one job. Started by the trainer service."
    )
    parser.add_argument("job", help="the job's id")
    parser.add_argument("--parent", type=int, default=0, help="end with this process")
    options = parser.parse_args(arguments)
    if options.parent:
        die_with(options.parent)
    ended = Status.DONE

    async def work(service: Service[Settings]) -> None:
        nonlocal ended
        try:
            ended = await hold(service, options.job)
        finally:
            service.stopping.set()

    return run(work, "trainer-job", Settings()) or ended


def die_with(parent: int) -> None:
    """Have the kernel end this process with the supervisor, however that one ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(Status.AGAIN)


async def hold(service: Service[Settings], job: str) -> Status:
    """Train the job while this process is its only trainer."""
    lock = await service.bus.try_lock(lock_key(ROLE, job), service.id)
    if lock is None:
        return Status.AGAIN
    try:
        record = await get_job(service.bus, job)
        if record is None or record.state not in TRAINED_STATES:
            return Status.DONE
        return await Holder(service, record, lock).work()
    finally:
        await lock.release()


class Holder:
    """The lock's holder: trains until the job ends, the lock is lost, or a newer holder has opened its epoch."""

    def __init__(self, service: Service[Settings], record: JobRecord, lock: Lock) -> None:
        self.service = service
        self.record = record
        self.lock = lock

    async def work(self) -> Status:
        from services.trainer.compute import ComputeThread
        from services.trainer.view import TrainerView

        compute, view = ComputeThread(), TrainerView()
        ledger = Ledger(self.service.bus, self.record.id, ROLE, self.service.id, view.apply)
        try:
            await ledger.open()
            return await self.until_any(
                self.train(ledger, view, compute),
                ledger.follow(),
                self.lock_lost(),
                self.told_to_stop(),
                self.job_left(),
            )
        except Fenced as error:
            log.warning("job %s: %s", self.record.id, error)
            return Status.AGAIN
        finally:
            compute.stop()

    async def train(self, ledger: Ledger, view: Any, compute: Any) -> Status:
        """Set the loop up and run it. Everything that imports torch is imported in the compute thread: it takes
        seconds, in which the lock must be renewed."""
        service, record = self.service, self.record
        loop_module, bench = await compute(lambda: _bench(record, service.settings))
        loop = loop_module.Loop(
            bus=service.bus,
            job=record.id,
            spec=bench.spec,
            ledger=ledger,
            view=view,
            bench=bench,
            compute=compute,
            data_dir=service.settings.data_dir,
            state=lambda: self.record.state,
            tell=self.tell,
            gauges=service.gauges,
            no_buffer_seconds=service.settings.no_buffer_seconds,
        )
        from services.trainer.folders import DiskFull

        try:
            end = await loop.run()
        except DiskFull as error:
            await self.pause(str(error))
            return Status.DONE
        log.info("job %s: %s", record.id, end.value)
        return Status.DONE

    async def pause(self, reason: str) -> None:
        """Stop the job where it can go on from, and say why."""
        log.error("job %s: %s; paused", self.record.id, reason)

        def paused(record: JobRecord) -> JobRecord | None:
            if record.state not in ("running", "pausing"):
                return None
            return msgspec.structs.replace(record, state="paused", reason=reason)

        record = await change_job(self.service.bus, self.record.id, paused)
        await self.tell("state", {"state": record.state, "reason": record.reason}, -1)

    async def tell(self, kind: str, body: dict[str, Any], step: int) -> None:
        await self.service.event(self.record.id, kind, body, step)

    async def until_any(self, training: Coroutine[Any, Any, Status], *guards: Coroutine[Any, Any, Any]) -> Status:
        """The result of `training`, or of the guard that ended first."""
        main = asyncio.ensure_future(training)
        tasks = [main, *(asyncio.ensure_future(guard) for guard in guards)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            first = main if main in done else done.pop()
            result = first.result()
            return result if isinstance(result, Status) else Status.AGAIN
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def lock_lost(self) -> Status:
        while not self.lock.lost:
            await asyncio.sleep(LOCK_POLL_SECONDS)
        log.warning("job %s: lock lost", self.record.id)
        return Status.AGAIN

    async def told_to_stop(self) -> Status:
        await self.service.stopping.wait()
        return Status.AGAIN

    async def job_left(self) -> Status:
        """Follows the job's state; returns when there is nothing left to train."""
        async for record in watch_jobs(self.service.bus):
            if record.id == self.record.id:
                self.record = record
                if record.state not in TRAINED_STATES:
                    break
        return Status.DONE


def _bench(record: JobRecord, settings: Settings) -> tuple[Any, Any]:
    """The loop's module and the workbench: torch and transformers come in here."""
    from services.trainer import loop
    from services.trainer.workbench import Workbench
    from shared.job.spec import JobSpec
    from shared.policy import resolve_model

    spec = JobSpec.model_validate(record.spec)
    source = resolve_model(spec.model, settings.data_dir)
    return loop, Workbench(spec, source, device=settings.device, share_prompts=settings.share_prompts)


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)  # the compute thread may be in the middle of a step, which nobody waits for
