"""Which versions live processes say that they hold or are about to load. Pure: the caller brings the clock.

A presence message with `detail = {"versions": {"<job>": "12.3"}}`, or a list of versions, holds them for a while; the
next message of the same process replaces what the one before said.
"""

from __future__ import annotations

from typing import Any

from shared.wire.messages import BadMessage, Presence, Version


class Holds:
    """What each process said last."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._said: dict[str, tuple[float, dict[str, set[Version]]]] = {}

    def hear(self, presence: Presence, now: float) -> None:
        versions = _versions(presence.detail.get("versions"))
        if versions or presence.id in self._said:
            self._said[presence.id] = (now, versions)

    def held(self, job: str, now: float) -> set[Version]:
        self._said = {id: said for id, said in self._said.items() if now - said[0] <= self._seconds}
        return {version for _, versions in self._said.values() for version in versions.get(job, ())}


def _versions(detail: Any) -> dict[str, set[Version]]:
    """What can be read of a detail; it comes from elsewhere and must not be able to stop anything."""
    if not isinstance(detail, dict):
        return {}
    found: dict[str, set[Version]] = {}
    for job, said in detail.items():
        for text in said if isinstance(said, list) else [said]:
            try:
                found.setdefault(str(job), set()).add(Version.parse(text))
            except (BadMessage, AttributeError):
                continue
    return found
