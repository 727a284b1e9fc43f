"""What the HTTP API answers with. Requests are job files; their schema is `shared.job`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from shared.wire.messages import JobRecord


class ProblemView(BaseModel):
    path: str = Field(description="Where in the job file, with dots; empty: the whole file.")
    message: str = Field(description="What is wrong, and what would be right.")


class ErrorView(BaseModel):
    """Every refusal: one line; for a job file also one entry a problem."""

    error: str
    errors: list[ProblemView] | None = None


class JobSummary(BaseModel):
    id: str
    name: str
    state: str = Field(description="running, pausing, paused, cancelling, cancelled, completed, failed or deleting")
    reason: str = Field(description="Why it failed or ended early; else empty.")
    model: str
    algorithm: str
    steps: int
    created_at: float = Field(description="Seconds since 1970, as all times here.")
    updated_at: float

    @classmethod
    def of(cls, record: JobRecord) -> JobSummary:
        return cls(**summary(record))


class JobView(JobSummary):
    """A job with its whole file, defaults filled in, and what the checks at submit found."""

    digest: str
    spec: dict[str, Any]
    facts: dict[str, Any]

    @classmethod
    def of(cls, record: JobRecord) -> JobView:
        return cls(**summary(record), digest=record.digest, spec=record.spec, facts=record.facts)


def summary(record: JobRecord) -> dict[str, Any]:
    algorithm = record.spec.get("algorithm") or {}
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state,
        "reason": record.reason,
        "model": str(record.spec.get("model", "")),
        "algorithm": str(algorithm.get("kind", "")),
        "steps": int(algorithm.get("steps", 0)),
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }


class JobPage(BaseModel):
    jobs: list[JobSummary] = Field(description="Newest first.")
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null: this was the last.")
    total: int = Field(description="All jobs, whatever the filter.")


class ValidationView(BaseModel):
    """A job file without a problem: as it would run, and what the checks found."""

    valid: bool = True
    spec: dict[str, Any]
    facts: dict[str, Any]


class EventView(BaseModel):
    id: int = Field(description="Sequence in the stream of events: `Last-Event-ID` resumes after it.")
    job: str
    event: str = Field(description="state, step, evaluation, progress or notice")
    at: float
    step: int
    body: dict[str, Any]


class StatusView(BaseModel):
    """The job now: newest progress, newest step, every evaluation, and who is alive to work on it."""

    job: JobView
    progress: EventView | None
    step: EventView | None
    evaluations: list[EventView]
    services: dict[str, int] = Field(description="Live processes of each service that a job needs.")
    missing: list[str] = Field(description="Services without a live process: the job waits for them.")


class MetricsView(BaseModel):
    job: str
    steps: list[dict[str, Any]] = Field(description="One row a step, in order; a step done again counts once.")
    evaluations: list[dict[str, Any]]


class SamplesView(BaseModel):
    samples: list[dict[str, Any]] = Field(description="Newest first: text, reward, components, versions, step.")
    next_before: int | None = Field(description="Give it as `before` for older ones.")
    stored: int = Field(description="How many match in the stream; trained ones are deleted unless `retain: true`.")


class LifeView(BaseModel):
    sample: str
    place: str = Field(description="Where it is now.")
    moments: list[dict[str, Any]] = Field(description="All that happened to it, in time.")
    body: dict[str, Any] | None = Field(description="Its text and score, where still stored.")


class LedgerView(BaseModel):
    records: list[dict[str, Any]]
    next_sequence: int | None = Field(description="Give it as `from_sequence` for the next page.")


class FileView(BaseModel):
    name: str
    size: int
    sha256: str = Field(description="Empty where the checkpoint's manifest does not say.")


class FilesView(BaseModel):
    """The model folder of a durable checkpoint."""

    job: str
    checkpoint: str = Field(description="`step.epoch`")
    step: int
    files: list[FileView]


class ReadyView(BaseModel):
    ready: bool
    missing: list[str] = Field(description="What the gateway waits for; empty when it can answer.")
    services: dict[str, int] = Field(description="Live processes of each service that a job needs.")
    missing_services: list[str] = Field(description="Needed services of which none is alive.")
