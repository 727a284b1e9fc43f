"""Does a job's data fit the world? Answers `check.data` before a job is accepted.

Loads the model's folder (no weights into memory) and passes over the data, as the job will.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from pydantic import ValidationError

from services.scheduler.data.rows import DataError
from services.scheduler.loading import read_data
from shared.job.spec import JobSpec
from shared.policy import ModelError, resolve_model
from shared.wire.messages import CheckJob, CheckReply, Problem


async def check_data(check: CheckJob, data_dir: Path) -> CheckReply:
    """Problems with their paths in the job file, or the facts that the job record keeps."""
    try:
        spec = JobSpec.model_validate(check.spec)
    except ValidationError as error:
        return CheckReply(
            problems=[
                Problem(path=".".join(map(str, each["loc"])), message=each["msg"])
                for each in error.errors(include_url=False)
            ]
        )
    stop = threading.Event()
    try:
        return await asyncio.to_thread(_look, spec, data_dir, stop)
    finally:
        stop.set()


def _look(spec: JobSpec, data_dir: Path, stop: threading.Event) -> CheckReply:
    try:
        model = resolve_model(spec.model, data_dir)
    except ModelError as error:
        return CheckReply(problems=[Problem(path="model", message=str(error))])
    try:
        material = read_data(spec, model, data_dir, "", stop)
    except DataError as error:
        return CheckReply(problems=[Problem(path=error.path, message=str(error))])
    except ModelError as error:
        return CheckReply(problems=[Problem(path="model", message=str(error))])
    facts = {
        **material.dataset.facts,
        "model_digest": model.digest,
        "architecture": model.architecture,
        "context_length": model.context_length,
    }
    rows, data, step = len(material.dataset.training), spec.data, spec.algorithm.groups_per_step
    if data.epochs is not None and rows * data.epochs < step:
        message = f"{rows} training rows x {data.epochs} passes are fewer than one step's {step} prompts"
        return CheckReply(problems=[Problem(path="data.epochs", message=message)], facts=facts)
    return CheckReply(facts=facts)
