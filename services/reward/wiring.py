"""How the reward service's parts hang together: one pool, one check, one consumer for each job with samples."""

from __future__ import annotations

import asyncio

from services.reward.check import RewardCheck
from services.reward.config import Settings
from services.reward.grade import JobGrader
from services.reward.grader import Limits
from services.reward.handlers import Counts, Reward
from services.reward.pool import Pool
from services.reward.python_process import PythonProcesses
from shared.job.spec import JobSpec
from shared.wire import topics
from shared.wire.bus import NotFound
from shared.wire.jobs import ACTIVE_STATES, supervise_jobs
from shared.wire.messages import JobRecord
from shared.wire.service import Service

STREAM_POLL_SECONDS = 0.25
GAUGE_SECONDS = 1.0
POOL_MEMORY_MEBIBYTES = 2048


async def serve(service: Service[Settings]) -> None:
    settings = service.settings
    pool = Pool(settings.processes, Limits(POOL_MEMORY_MEBIBYTES), start_seconds=settings.start_seconds)
    counts = Counts()

    async def work(job: JobRecord) -> None:
        python = PythonProcesses(settings.python_processes, start_seconds=settings.start_seconds)
        grader = JobGrader(job.id, JobSpec.model_validate(job.spec), pool, python, name=service.id)
        reward = Reward(job.id, service.bus, grader, service, counts)
        stream = topics.trajectories(job.id).name
        try:
            while True:
                try:
                    await service.bus.consume(
                        stream, topics.REWARD_CONSUMER, reward.on_trajectory, concurrency=settings.concurrency
                    )
                except NotFound:  # the scheduler has not declared it yet, or the job is being deleted
                    await asyncio.sleep(STREAM_POLL_SECONDS)
        finally:
            await python.close()

    async def gauges() -> None:
        while True:
            service.gauges.update(counts.gauges() | {"grader_processes_started": float(pool.started)})
            await asyncio.sleep(GAUGE_SECONDS)

    check = RewardCheck(pool, start_seconds=settings.start_seconds)
    stop = await service.bus.serve(topics.CHECK_REWARD, check.on_check, queue="reward")
    service.loop(supervise_jobs(service, work, ACTIVE_STATES), "supervise jobs")
    service.loop(gauges(), "gauges")
    try:
        await service.stopping.wait()
    finally:
        await stop()
        await pool.close()
