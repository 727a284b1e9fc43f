"""Tells people how a job stands: an event every two seconds, gauges, and a line when nothing moves."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from services.scheduler.config import Settings
from services.scheduler.job_state import JobState
from services.scheduler.progress import standstill
from shared.wire.service import Service

log = logging.getLogger(__name__)
GAUGES = {  # figure of a job -> gauge of the process, summed over its jobs
    "waiting": "samples_waiting",
    "leased": "samples_leased",
    "finished": "samples_finished",
    "workers": "workers_asking",
    "tokens_per_second": "tokens_per_second",
    "stale_reports": "stale_reports",
}
Figures = dict[str, dict[str, float]]


class Reporter:
    """Of one job, in the process that holds it. `figures` has those of all its jobs."""

    def __init__(self, service: Service[Settings], state: JobState, figures: Figures) -> None:
        self._service, self._state, self._figures = service, state, figures
        self._moved_at = self._told_at = time.monotonic()
        self._last_seen: tuple[object, ...] = ()

    async def run(self) -> None:
        while True:
            body = self._body()
            self._figures[self._state.job] = {name: float(body[name]) for name in GAUGES}
            self._sum_up()
            self._hold_version()
            await self._service.event(self._state.job, "progress", body, step=self._state.view.trained_step)
            await self._watch()
            await asyncio.sleep(self._service.settings.progress_seconds)

    def clear(self) -> None:
        """The job's share of the gauges goes with it."""
        self._figures.pop(self._state.job, None)
        self._sum_up()
        self._service.detail.get("versions", {}).pop(self._state.job, None)

    def _hold_version(self) -> None:
        """An evaluated version is kept for as long as this process says that it is wanted."""
        versions = self._service.detail.setdefault("versions", {})
        if self._state.rounds.version is None:
            versions.pop(self._state.job, None)
        else:
            versions[self._state.job] = [str(self._state.rounds.version)]

    def _sum_up(self) -> None:
        for name, gauge in GAUGES.items():
            self._service.gauges[gauge] = sum(figures[name] for figures in self._figures.values())
        self._service.gauges["jobs_held"] = float(len(self._figures))

    def _body(self) -> dict[str, Any]:
        state, view = self._state, self._state.view
        return {
            "waiting": state.work.num_waiting,
            "leased": len(state.table.leases),
            "finished": state.work.num_finished,
            "in_system": view.in_system(state.applied_step),
            "issued": view.issued,
            "dropped": view.gone,
            "dead": view.died,
            "applied_step": state.applied_step,
            "newest_step": state.versions.newest_step,
            "batched_step": view.batched_step,
            "trained_step": view.trained_step,
            "steps": state.last_step,
            "workers": len(state.table.workers),
            "tokens_per_second": state.token_rate.per_second(time.monotonic()),
            "stale_reports": state.table.stale_reports,
            "eval": state.rounds.progress(),
        }

    async def _watch(self) -> None:
        """A standstill is told once, and again each time as much time has passed."""
        state, now = self._state, time.monotonic()
        seen = (
            state.view.records,
            state.versions.announced,
            state.work.num_finished,
            state.rounds.samples_left,
            sum(lease.tokens for lease in state.table.leases.values()),
            state.job_state,
        )
        if seen != self._last_seen or state.job_state == "paused":
            self._last_seen, self._moved_at, self._told_at = seen, now, now
        elif now - self._told_at > self._service.settings.stall_seconds:
            self._told_at = now
            text = standstill(state.standing(), now - self._moved_at)
            log.warning("job %s: %s", state.job, text)
            await self._service.event(state.job, "notice", {"level": "warning", "text": text})
