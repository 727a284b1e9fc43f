"""The trained model as files: what is in the newest durable checkpoint, and each file of it."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse

from gateway.checkpoints import Checkpoint, newest_checkpoint, read_checkpoint
from gateway.context import ReadyGateway, TheJob
from gateway.errors import ApiError
from gateway.models import FilesView, FileView
from gateway.routes.jobs import refusals

router = APIRouter(prefix="/v1/jobs/{job}/files", tags=["files"])


@router.get("", summary="List the files of the trained model", responses=refusals(404, 409, 422, 503))
async def list_files(
    record: TheJob,
    gateway: ReadyGateway,
    checkpoint: Annotated[str | None, Query(max_length=40, description="step.epoch; empty: the newest.")] = None,
) -> FilesView:
    """A Hugging Face model folder; `409` while there is no checkpoint yet."""
    if checkpoint is None:
        found = await newest_checkpoint(gateway.bus, gateway.data_dir, record.id)
    else:
        found = await asyncio.to_thread(read_checkpoint, gateway.data_dir, record.id, checkpoint)
    files = [FileView(name=file.name, size=file.size, sha256=file.sha256) for file in found.files]
    return FilesView(job=record.id, checkpoint=str(found.version), step=found.version.step, files=files)


@router.get(
    "/{checkpoint}/{name}", summary="Download one file", response_class=FileResponse,
    responses=refusals(404, 422, 503),
)  # fmt: skip
async def download(record: TheJob, gateway: ReadyGateway, checkpoint: str, name: str) -> FileResponse:
    found: Checkpoint = await asyncio.to_thread(read_checkpoint, gateway.data_dir, record.id, checkpoint)
    if name not in {file.name for file in found.files}:  # also refuses every path that leaves the folder
        raise ApiError(404, f"checkpoint {checkpoint} has no file {name!r}")
    return FileResponse(found.folder / name, media_type="application/octet-stream", filename=name)
