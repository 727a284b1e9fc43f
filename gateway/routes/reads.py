"""What a job does and did: status, metrics, events, samples, ledger, audit. Reads only."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from gateway import events
from gateway.audit import Audit, audit_job
from gateway.context import ReadyGateway, TheJob
from gateway.errors import ApiError
from gateway.life import sample_life
from gateway.models import EventView, JobView, LedgerView, LifeView, MetricsView, SamplesView, StatusView
from gateway.routes.jobs import refusals
from shared.wire.bus.api import NotFound
from shared.wire.jobs import get_job
from shared.wire.ledger import read_ledger
from shared.wire.messages import SampleKey, to_plain

router = APIRouter(prefix="/v1/jobs/{job}", tags=["reads"])
MISSING = refusals(404, 409, 503)
WITH_A_BODY = ("running", "pausing", "paused", "cancelling")


@router.get("/status", summary="The job now: progress, newest step, evaluations, who works on it", responses=MISSING)
async def status(record: TheJob, gateway: ReadyGateway) -> StatusView:
    bus = gateway.bus
    return StatusView(
        job=JobView.of(record),
        progress=await events.newest(bus, record.id, "progress"),
        step=await events.newest(bus, record.id, "step"),
        evaluations=[event async for event in events.past(bus, record.id, "evaluation")],
        services=gateway.roster.counts(),
        missing=gateway.roster.missing() if record.state in WITH_A_BODY else [],
    )


@router.get("/metrics", summary="One row a step, and every evaluation", responses=MISSING)
async def metrics(record: TheJob, gateway: ReadyGateway, from_step: Annotated[int, Query(ge=0)] = 0) -> MetricsView:
    rows: dict[int, dict[str, object]] = {}
    async for event in events.past(gateway.bus, record.id, "step"):
        if event.step >= from_step:
            rows[event.step] = {"step": event.step, "at": event.at, **event.body}
    rounds: dict[object, dict[str, object]] = {}
    async for event in events.past(gateway.bus, record.id, "evaluation"):
        rounds[event.body.get("round", event.id)] = {"at": event.at, **event.body}
    return MetricsView(job=record.id, steps=[rows[step] for step in sorted(rows)], evaluations=list(rounds.values()))


@router.get(
    "/events", summary="What happens, as server-sent events", responses={
        **MISSING, 200: {"content": {"text/event-stream": {}}, "description": "id: sequence, event: kind, data: JSON"},
    }, response_class=StreamingResponse,
)  # fmt: skip
async def stream(
    record: TheJob,
    gateway: ReadyGateway,
    last_event_id: Annotated[str | None, Header(description="Resume after this event.")] = None,
    after: Annotated[int | None, Query(ge=0, description="The same, where a header cannot be sent.")] = None,
) -> StreamingResponse:
    """Everything from the first event on, or after `Last-Event-ID`; then what comes, until the job is deleted."""
    start = after or 0
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isdigit()):
            raise ApiError(422, "Last-Event-ID: not the id of an event", [("Last-Event-ID", "not the id of an event")])
        start = int(last_event_id)

    async def exists() -> bool:
        return await get_job(gateway.bus, record.id) is not None

    frames = events.server_sent(
        gateway.bus, record.id, after=start, heartbeat_seconds=gateway.settings.heartbeat_seconds,
        stopping=gateway.stopping, exists=exists,
    )  # fmt: skip
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(frames, media_type="text/event-stream", headers=headers)


@router.get("/events:past", summary="The events so far, as a list", responses=MISSING)
async def past_events(
    record: TheJob,
    gateway: ReadyGateway,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[EventView]:
    found: list[EventView] = []
    async for event in events.past(gateway.bus, record.id, after=after):
        found.append(event)
        if len(found) == limit:
            break
    return found


@router.get("/samples", summary="Read trajectories with their scores", responses=MISSING)
async def samples(
    record: TheJob,
    gateway: ReadyGateway,
    sample_class: Annotated[Literal["train", "eval"] | None, Query(description="Only this class.")] = None,
    step: Annotated[int | None, Query(ge=1, description="Only the batch of this step.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 20,
    before: Annotated[int | None, Query(ge=1, description="`next_before` of the page before.")] = None,
) -> SamplesView:
    page = await gateway.samples.page(
        record.id, sample_class=sample_class, step=step, limit=limit, before=before
    )  # fmt: skip
    return SamplesView(**events.plain(asdict(page)))


@router.get("/samples/{group}/{index}", summary="One sample's whole life", responses=MISSING)
async def sample(
    record: TheJob,
    gateway: ReadyGateway,
    group: int,
    index: int,
    eval_round: Annotated[int | None, Query(ge=0, description="For an evaluation's sample: its round.")] = None,
) -> LifeView:
    key = SampleKey(record.id, group, index, eval_round)
    life = await sample_life(gateway.bus, key)
    if not life.known:
        raise ApiError(404, f"no sample {key.id}: it was never issued, or it was evaluated and deleted")
    return LifeView(
        sample=life.sample, place=life.place, moments=events.plain(life.moments), body=events.plain(life.body)
    )


@router.get("/ledger", summary="The ledger's records, in order", responses=MISSING)
async def ledger(
    record: TheJob,
    gateway: ReadyGateway,
    from_sequence: Annotated[int, Query(ge=1)] = 1,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> LedgerView:
    rows: list[dict[str, object]] = []
    try:
        async for sequence, at, entry in read_ledger(gateway.bus, record.id, from_sequence):
            if len(rows) == limit:
                return LedgerView(records=rows, next_sequence=sequence)
            rows.append({"sequence": sequence, "at": at, **events.plain(to_plain(entry))})
    except NotFound:
        pass  # the job has not begun: an empty ledger
    return LedgerView(records=rows, next_sequence=None)


@router.get("/audit", summary="The ledger's balance, from the streams alone", responses=MISSING)
async def audit(record: TheJob, gateway: ReadyGateway) -> Audit:
    """issued = trained + dropped + dead + in flight, each sample in exactly one place; says what is wrong, if it is."""
    return await audit_job(gateway.bus, record)
