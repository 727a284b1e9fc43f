"""What a watcher knows of a job: events in, numbers to show out. Pure; lenient, since any key may be missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.sse import JobEvent

ENDED = ("completed", "failed", "cancelled")
NOTICES_KEPT = 4
STEPS_FOR_PACE = 10
Json = dict[str, Any]


@dataclass
class Progress:
    """The newest of everything, and the history of what has a trend."""

    job: str
    name: str = ""
    state: str = "running"
    reason: str = ""
    steps: int = 0
    step: int = 0
    version: str = ""
    created_at: float = 0.0
    newest_at: float = 0.0
    rewards: dict[int, float] = field(default_factory=dict)
    solve_rates: dict[int, float] = field(default_factory=dict)
    step_times: dict[int, float] = field(default_factory=dict)
    newest_step: Json = field(default_factory=dict)
    stages: Json = field(default_factory=dict)
    evaluations: dict[Any, Json] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, job: Json) -> Progress:
        return cls(
            job["id"], name=job["name"], state=job["state"], reason=job["reason"], steps=job["steps"],
            created_at=job["created_at"],
        )  # fmt: skip

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def see_job(self, job: Json) -> None:
        """The job's record, which wins over what events say of the state."""
        self.state, self.reason = job["state"], job["reason"]

    def apply(self, event: JobEvent) -> None:
        body = event.body
        self.newest_at = max(self.newest_at, event.at)
        if event.event == "step":
            self._apply_step(event)
        elif event.event == "progress":
            self.stages = body
            self.steps = int(body.get("steps") or self.steps)
        elif event.event == "evaluation":
            self.evaluations[body.get("round", event.id)] = body
        elif event.event == "state" and body.get("state"):
            self.state, self.reason = str(body["state"]), str(body.get("reason", ""))
        elif event.event == "notice":
            self.notices = [*self.notices, str(body.get("text", ""))][-NOTICES_KEPT:]

    def _apply_step(self, event: JobEvent) -> None:
        body, step = event.body, event.step
        self.step = max(self.step, step)
        self.newest_step = body
        self.version = str(body.get("version", self.version))
        self.step_times[step] = event.at
        for key, history in (("reward_mean", self.rewards), ("exact_solve_rate", self.solve_rates)):
            value = body.get(key)
            if isinstance(value, int | float):
                history[step] = float(value)

    def elapsed(self, now: float) -> float:
        """Seconds since it was created, up to its end."""
        return (self.newest_at if self.ended else now) - self.created_at

    @property
    def staleness(self) -> float | None:
        """Mean age of the newest step's tokens, in versions."""
        histogram = self.newest_step.get("age_histogram") or {}
        tokens = sum(histogram.values())
        return sum(int(age) * count for age, count in histogram.items()) / tokens if tokens else None

    @property
    def tokens_per_second(self) -> float | None:
        value = self.stages.get("tokens_per_second", self.newest_step.get("tokens_per_second"))
        return float(value) if isinstance(value, int | float) else None

    @property
    def seconds_left(self) -> float | None:
        """The steps to go at the pace of the last few."""
        steps = sorted(self.step_times)[-STEPS_FOR_PACE:]
        if len(steps) < 2 or self.steps <= 0:
            return None
        pace = (self.step_times[steps[-1]] - self.step_times[steps[0]]) / (steps[-1] - steps[0])
        return max(0.0, pace * (self.steps - self.step))

    def history(self, values: dict[int, float]) -> list[float]:
        return [values[step] for step in sorted(values)]

    @property
    def in_stages(self) -> str:
        """Where the samples are, as the scheduler counts them."""
        names = (("waiting", "waiting"), ("leased", "at workers"), ("finished", "finished"))
        return ", ".join(f"{self.stages[key]} {name}" for key, name in names if key in self.stages)
