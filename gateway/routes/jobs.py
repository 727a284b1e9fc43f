"""Jobs over HTTP: submit, validate, list, show, pause, resume, cancel, delete."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response

from gateway.context import ReadyGateway, TheJob
from gateway.jobs import act
from gateway.models import ErrorView, JobPage, JobSummary, JobView, ValidationView

Refusals = dict[int | str, dict[str, Any]]


def refusals(*statuses: int) -> Refusals:
    """For the OpenAPI page: these statuses carry an `ErrorView`."""
    return {status: {"model": ErrorView} for status in statuses}


router = APIRouter(prefix="/v1", tags=["jobs"])
State = Literal["running", "pausing", "paused", "cancelling", "cancelled", "completed", "failed", "deleting"]
Base = Annotated[str | None, Query(description="Absolute folder that relative paths in the file start from.")]
JOB_FILE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A job file, as YAML or JSON.",
        "content": {
            "application/yaml": {"schema": {"type": "string"}}, "application/json": {"schema": {"type": "object"}},
        },
    }
}  # fmt: skip


@router.post(
    "/jobs", status_code=201, summary="Submit a job", response_model=JobView, openapi_extra=JOB_FILE,
    responses=refusals(409, 413, 422, 503) | {200: {"model": JobView, "description": "This key's job, made before."}},
)  # fmt: skip
async def submit(
    request: Request,
    response: Response,
    gateway: ReadyGateway,
    base: Base = None,
    idempotency_key: Annotated[str | None, Header(description="Same key, same file: the same job, once.")] = None,
) -> JobView:
    """Checks the file against the schema and against the world (model, data, reward load), then starts the job."""
    record, created = await gateway.submissions.submit(await request.body(), base, idempotency_key)
    if created:
        await gateway.tell(record.id, "state", {"state": record.state, "reason": "submitted"})
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/jobs/{record.id}"
    return JobView.of(record)


@router.post(
    "/jobs:validate", summary="Check a job file without running it", response_model=ValidationView,
    openapi_extra=JOB_FILE, responses=refusals(413, 422, 503),
)  # fmt: skip
async def validate(request: Request, gateway: ReadyGateway, base: Base = None) -> ValidationView:
    """The same checks as at submit: the file as it would run, and what the checks found."""
    checked = await gateway.submissions.check(await request.body(), base)
    return ValidationView(spec=checked.plain, facts=checked.facts)


@router.get("/jobs", summary="List jobs, newest first", responses=refusals(422, 503))
async def list_jobs(
    gateway: ReadyGateway,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[str | None, Query(max_length=200, description="`next_cursor` of the page before.")] = None,
    state: Annotated[State | None, Query(description="Only jobs in this state.")] = None,
    name: Annotated[str | None, Query(max_length=100, description="Only jobs of this name.")] = None,
) -> JobPage:
    records, next_cursor = gateway.index.page(limit, cursor, state, name)
    return JobPage(
        jobs=[JobSummary.of(record) for record in records], next_cursor=next_cursor, total=len(gateway.index)
    )


@router.get("/jobs/{job}", summary="Show a job", responses=refusals(404, 409, 503))
async def show(record: TheJob) -> JobView:
    """`job` is an id, the only id that begins so, or a name (its newest job); the same for every address below."""
    return JobView.of(record)


@router.post("/jobs/{job}/pause", summary="Pause a job", status_code=202, responses=refusals(404, 409, 503))
async def pause(record: TheJob, gateway: ReadyGateway) -> JobView:
    """No new leases; what is leased or scored is finished and trained as far as it makes whole batches."""
    return await _act(gateway, record.id, "pause")


@router.post(
    "/jobs/{job}/resume", summary="Resume a paused or failed job", status_code=202, responses=refusals(404, 409, 503)
)
async def resume(record: TheJob, gateway: ReadyGateway) -> JobView:
    """A failed job goes on from its newest checkpoint."""
    return await _act(gateway, record.id, "resume")


@router.post("/jobs/{job}/cancel", summary="Cancel a job", status_code=202, responses=refusals(404, 409, 503))
async def cancel(record: TheJob, gateway: ReadyGateway) -> JobView:
    """Drops what is in flight; ledger and checkpoints stay."""
    return await _act(gateway, record.id, "cancel")


@router.delete("/jobs/{job}", summary="Delete a job and all it made", status_code=202, responses=refusals(404, 503))
async def delete(record: TheJob, gateway: ReadyGateway) -> JobView:
    """Marks the job; the scheduler removes streams, events and files, and the job itself last."""
    return await _act(gateway, record.id, "delete")


async def _act(gateway: ReadyGateway, id: str, action: str) -> JobView:
    record, changed = await act(gateway.bus, id, action)
    if changed:
        await gateway.tell(id, "state", {"state": record.state, "reason": f"{action} was asked for"})
    return JobView.of(record)
