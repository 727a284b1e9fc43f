"""What the reward service does with each trajectory of one job.

consumes  trajectory.<job>.>     acknowledged once its score is stored, or once it is set aside
produces  scored.<job>....       message id <sample>/<attempt>: a copy is a duplicate, or loses by its sequence
stalls    while a grader takes its time; other trajectories and other jobs go on
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from services.reward.grade import JobGrader
from shared.wire import topics
from shared.wire.bus import Stored
from shared.wire.bus.api import Bus
from shared.wire.messages import (
    BadMessage,
    Scored,
    Trajectory,
    body_headers,
    decode,
    encode,
    message_id,
    score_headers,
)
from shared.wire.service import Service

log = logging.getLogger("reward")

SUSPICIOUS_DELIVERIES = 3  # it may be what ended the process that graded it before: grade it in a child


@dataclass
class Counts:
    scored: int = 0
    invalid: int = 0
    set_aside: int = 0
    in_flight: int = 0

    def gauges(self) -> dict[str, float]:
        return {
            "samples_scored": float(self.scored),
            "samples_invalid": float(self.invalid),
            "messages_set_aside": float(self.set_aside),
            "samples_in_flight": float(self.in_flight),
        }


@dataclass
class Reward:
    """Scores one job's trajectories."""

    job: str
    bus: Bus
    grader: JobGrader
    service: Service[Any]
    counts: Counts = field(default_factory=Counts)

    async def on_trajectory(self, stored: Stored) -> None:
        try:
            trajectory = decode(Trajectory, stored.data)
            if trajectory.key.job != self.job:
                raise BadMessage(f"a sample of job {trajectory.key.job!r} in the stream of {self.job!r}")
        except BadMessage as error:
            await self._set_aside(stored, str(error))
            return
        self.counts.in_flight += 1
        try:
            score = await self.grader.grade(trajectory, alone=stored.deliveries >= SUSPICIOUS_DELIVERIES)
        finally:
            self.counts.in_flight -= 1
        if not score.valid:
            self.counts.invalid += 1
            log.warning("%s %s: %s", trajectory.sample, trajectory.attempt, score.error)
        body = encode(Scored(trajectory=stored.data, score=score))
        await self.bus.publish(
            topics.scored_subject(trajectory.key),
            body,
            message_id=message_id(trajectory.sample, trajectory.attempt),
            headers=body_headers(trajectory) | score_headers(score, body),
        )
        self.counts.scored += 1

    async def _set_aside(self, stored: Stored, reason: str) -> None:
        """A message that nobody can read: said, counted, and acknowledged, since another delivery would not help."""
        self.counts.set_aside += 1
        text = f"set aside message {stored.sequence} of {stored.subject}: {reason}"
        log.error(text)
        await self.service.event(self.job, "notice", {"level": "error", "text": text})
