"""Model and data of a job, read off the event loop: what `check.data` tries and a job starts with."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from services.scheduler.data.dataset import load, open_source
from services.scheduler.job_state import Material
from services.scheduler.prompts import Prompts
from shared.job.spec import JobSpec
from shared.policy import ModelFolder, Tokenizer, resolve_model


async def load_material(spec: JobSpec, data_dir: Path, job_digest: str = "") -> Material:
    """Raises `ModelError` or `DataError`. Cancelled, it stops reading."""
    stop = threading.Event()
    try:
        return await asyncio.to_thread(read_material, spec, data_dir, job_digest, stop)
    finally:
        stop.set()


def read_material(spec: JobSpec, data_dir: Path, job_digest: str, stop: threading.Event) -> Material:
    model = resolve_model(spec.model, data_dir)
    return read_data(spec, model, data_dir, job_digest, stop)


def read_data(spec: JobSpec, model: ModelFolder, data_dir: Path, job_digest: str, stop: threading.Event) -> Material:
    prompts = Prompts(spec, model, Tokenizer.load(model.path), job_digest)
    dataset = load(spec, open_source(spec, data_dir), prompts.too_long, stop)
    return Material(dataset, prompts)
