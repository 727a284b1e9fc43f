"""Reads server-sent events line by line. Pure: lines in, events out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class JobEvent:
    """Something that happened to a job. `id` orders events and resumes a stream."""

    id: int
    event: str
    job: str = ""
    at: float = 0.0
    step: int = -1
    body: dict[str, Any] = field(default_factory=dict)


class Heartbeat:
    """The stream is silent but alive."""


HEARTBEAT = Heartbeat()


class Lines:
    """Feed it lines without their ends; it gives back an event when one is whole, or a heartbeat for a comment."""

    def __init__(self) -> None:
        self.last_id = 0
        self._fields: dict[str, str] = {}

    def feed(self, line: str) -> JobEvent | Heartbeat | None:
        if line.startswith(":"):
            return HEARTBEAT
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            self._fields[name] = (
                f"{self._fields[name]}\n{value}" if name == "data" and "data" in self._fields else value
            )
            return None
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return None
        if fields.get("id", "").isdigit():
            self.last_id = int(fields["id"])
        try:
            data = json.loads(fields["data"])
        except ValueError:
            data = {"body": {"unreadable": fields["data"]}}
        known = {key: data[key] for key in ("job", "at", "step", "body") if key in data}
        return JobEvent(id=self.last_id, event=fields.get("event", "message"), **known)
