"""Is it alive, can it answer, and what do the processes measure (Prometheus)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.context import AnyGateway, Gateway
from gateway.models import ReadyView
from shared.wire.messages import JOB_STATES

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="The process is alive")
async def healthz() -> dict[str, str]:
    """200 for as long as the process serves, whatever else is missing."""
    return {"status": "ok"}


@router.get("/readyz", summary="Requests can be answered", responses={503: {"model": ReadyView}})
async def readyz(response: Response, gateway: AnyGateway, stack: bool = False) -> ReadyView:
    """503 with what is missing. With `?stack=true` a service of which none is alive is missing too."""
    absent = gateway.roster.missing()
    missing = gateway.missing + ([f"a live {service}" for service in absent] if stack else [])
    response.status_code = 503 if missing else 200
    return ReadyView(ready=not missing, missing=missing, services=gateway.roster.counts(), missing_services=absent)


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(gateway: AnyGateway) -> Response:
    """Jobs by state, live processes, and every gauge that a process publishes with its heartbeat."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(gateway))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class _Snapshot:
    """The gateway's knowledge as metrics, made anew for each scrape."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterable[Metric]:
        jobs = GaugeMetricFamily("slipstream_jobs", "Jobs by state.", labels=["state"])
        states = self._gateway.index.states()
        for state in JOB_STATES:
            jobs.add_metric([state], states[state])
        yield jobs
        yield GaugeMetricFamily(
            "slipstream_gateway_ready", "1 when requests can be answered.", value=0 if self._gateway.missing else 1
        )
        processes = GaugeMetricFamily("slipstream_processes", "Live processes.", labels=["service"])
        for service, count in self._gateway.roster.counts().items():
            processes.add_metric([service], count)
        yield processes
        yield from self._gauges()

    def _gauges(self) -> Iterable[Metric]:
        families: dict[str, GaugeMetricFamily] = {}
        for presence in self._gateway.roster.alive():
            for full_name, value in sorted(presence.gauges.items()):
                name, _, job = full_name.partition(".")  # a gauge of one job is called <name>.<job>
                metric = "slipstream_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
                family = families.setdefault(
                    metric, GaugeMetricFamily(metric, f"{name}, as its process says.", labels=["service", "id", "job"])
                )
                family.add_metric([presence.service, presence.id, job], value)
        return families.values()
