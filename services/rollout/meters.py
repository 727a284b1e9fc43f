"""What the worker tells about itself: gauges for /metrics, and which versions it holds or is about to load."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

WINDOW_SECONDS = 10.0


@dataclass
class Meters:
    tokens: int = 0
    samples: int = 0
    failures: int = 0
    recent: deque[tuple[float, int]] = field(default_factory=deque)

    def drew(self, tokens: int, now: float) -> None:
        """Note new tokens."""
        self.tokens += tokens
        self.recent.append((now, tokens))

    def rate(self, now: float) -> float:
        """Tokens a second over the last ten seconds."""
        while self.recent and self.recent[0][0] < now - WINDOW_SECONDS:
            self.recent.popleft()
        return sum(tokens for _, tokens in self.recent) / WINDOW_SECONDS

    def gauges(self, *, now: float, running: int, slots: int, version_step: int, starts: int) -> dict[str, float]:
        return {
            "tokens_per_second": self.rate(now),
            "tokens": float(self.tokens),
            "samples_finished": float(self.samples),
            "samples_failed": float(self.failures),
            "running": float(running),
            "slots": float(slots),
            "version_step": float(version_step),
            "engine_starts": float(starts),
        }


def detail(job: str, versions: list[str], engine_pid: int | None) -> dict[str, Any]:
    """`versions` holds what is reported from being deleted: what the engine holds and what it is about to load."""
    held = {job: versions} if job and versions else {}
    return {"job": job, "versions": held, "engine_pid": engine_pid}
