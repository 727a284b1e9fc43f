"""What the scheduler's process does: one loop a running job, one deletion a deleted one, answers to `check.data`."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.scheduler.check import check_data
from services.scheduler.config import Settings
from services.scheduler.deleting import delete_everything
from services.scheduler.job_loop import JobLoop
from services.scheduler.reporting import Figures
from shared.wire.jobs import ACTIVE_STATES, supervise_jobs, watch_jobs
from shared.wire.messages import CheckJob, JobRecord, decode, encode
from shared.wire.service import Service
from shared.wire.topics import CHECK_DATA


@dataclass
class Scheduler:
    """All jobs of one process; other processes stand by for the same jobs."""

    service: Service[Settings]
    records: dict[str, JobRecord] = field(default_factory=dict)
    figures: Figures = field(default_factory=dict)

    async def serve(self) -> None:
        """Until the process is told to stop."""
        service = self.service
        service.loop(self._keep_records(), "job records")
        service.loop(supervise_jobs(service, self.run_job, ACTIVE_STATES), "running jobs")
        service.loop(supervise_jobs(service, self.delete_job, ("deleting",)), "deleted jobs")
        stop_serving = await service.bus.serve(CHECK_DATA, self.on_check, queue="scheduler")
        await service.stopping.wait()
        await stop_serving()

    async def run_job(self, record: JobRecord) -> None:
        await JobLoop(self.service, record, lambda: self.records.get(record.id, record), self.figures).run()

    async def delete_job(self, record: JobRecord) -> None:
        await delete_everything(self.service.bus, record.id, self.service.settings.data_dir, self.service.id)

    async def on_check(self, data: bytes) -> bytes:
        return encode(await check_data(decode(CheckJob, data), self.service.settings.data_dir))

    async def _keep_records(self) -> None:
        async for record in watch_jobs(self.service.bus):
            self.records[record.id] = record


async def serve(service: Service[Settings]) -> None:
    await Scheduler(service).serve()
