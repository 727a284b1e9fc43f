"""A generation request: what was asked, what has been drawn so far, and how it ended.

Made by the HTTP side, filled by the decode thread (lists only ever grow), read by the HTTP side up to a count that the
decode thread reported. So neither needs a lock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from engine.text import StopStrings


@dataclass(frozen=True)
class SamplingParams:
    """How an answer is sampled and when it ends."""

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    stream_interval: int = 1


@dataclass(frozen=True)
class Returned:
    """What the answer carries beside its ids."""

    logprobs: bool = False
    prompt_logprobs_from: int = -1
    prompt_ids: bool = False
    kept_ids: bool = False


def stopped(matched: int | str) -> dict[str, Any]:
    """Finish reason of an answer that met a stop token or a stop string."""
    return {"type": "stop", "matched": matched}


def full(length: int) -> dict[str, Any]:
    """Finish reason of an answer that used up its tokens."""
    return {"type": "length", "length": length}


def aborted(message: str = "Aborted", status: int | None = None, kind: str | None = None) -> dict[str, Any]:
    """Finish reason of an answer that was cut short; with a status it is the server's or the request's fault."""
    return {"type": "abort", "message": message, "status_code": status, "err_type": kind}


@dataclass(eq=False)
class Request:
    """One answer wanted. `draws` limits nothing but what the context leaves; see `SamplingParams.max_new_tokens`."""

    rid: str
    prompt_ids: list[int]
    params: SamplingParams
    returned: Returned = Returned()
    stream: bool = False
    stop_strings: StopStrings | None = None
    created: float = field(default_factory=time.perf_counter)

    output_ids: list[int] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)
    behaviour: list[float] = field(default_factory=list)
    kept: list[list[int]] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    finish: dict[str, Any] | None = None
    finished: float = 0.0
    cached_tokens: int = 0
    retractions: int = 0
    # (version, number of tokens drawn until it was replaced), oldest first.
    past_versions: list[tuple[str, int]] = field(default_factory=list)
    version: str = ""

    def note_version(self, version: str) -> None:
        """Says that tokens from here on are made by `version`."""
        if self.output_ids and self.version != version:
            self.past_versions.append((self.version, len(self.output_ids)))
        self.version = version

    def version_spans(self, count: int) -> list[dict[str, Any]]:
        """Which version made which of the first `count` tokens; end is exclusive."""
        spans: list[dict[str, Any]] = []
        start = 0
        for version, end in [*self.past_versions, (self.version, count)]:
            end = min(end, count)
            if spans and end <= start:
                continue
            if spans and spans[-1]["version"] == version:
                spans[-1]["end"] = end
            else:
                spans.append({"version": version, "start": start, "end": end})
            start = end
        return spans
