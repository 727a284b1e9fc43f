"""Who is alive: every service says so every two seconds, with its gauges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shared.wire.messages import BadMessage, Presence, decode

ALIVE_SECONDS = 6.0
# Without these a job cannot get on; the gateway itself answers, so it is not in the list.
NEEDED = ("scheduler", "rollout", "reward", "replay-buffer", "trainer", "weight-broadcast")


@dataclass(frozen=True)
class Seen:
    presence: Presence
    at: float


class Roster:
    """The newest sign of life of each process; `now` is a monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seen: dict[tuple[str, str], Seen] = {}

    def hear(self, data: bytes) -> None:
        try:
            presence = decode(Presence, data)
        except BadMessage:
            return  # another release's sign of life: that process is not ours to count
        self._seen[presence.service, presence.id] = Seen(presence, self._now())

    def alive(self) -> list[Presence]:
        """Everyone heard of lately, by service and id."""
        limit = self._now() - ALIVE_SECONDS
        self._seen = {key: seen for key, seen in self._seen.items() if seen.at >= limit}
        return [self._seen[key].presence for key in sorted(self._seen)]

    def counts(self) -> dict[str, int]:
        """How many of each service a job needs; 0 where none is alive."""
        alive = [presence.service for presence in self.alive()]
        return {service: alive.count(service) for service in NEEDED}

    def missing(self) -> list[str]:
        return [service for service, count in self.counts().items() if count == 0]
