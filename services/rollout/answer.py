"""An engine's reply to /generate, checked and turned into arrays. Pure.

output_token_logprobs            log_softmax(logits / temperature)         -> raw
output_token_sampling_logprobs   the same over what top-p and top-k kept   -> behaviour (raw where nothing is cut)
weight_versions                  which version made which tokens           -> spans
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from services.rollout.errors import BadAnswer, Cut, EngineRefused
from shared.wire.messages import BadMessage, Span, Version


@dataclass(frozen=True)
class Answer:
    """One finished generation. All arrays have the length of `token_ids`."""

    token_ids: np.ndarray
    raw: np.ndarray
    behaviour: np.ndarray
    spans: list[Span]
    finish_reason: str
    text: str
    cached_tokens: int = 0


def column(meta: dict[str, Any], name: str, count: int) -> np.ndarray:
    """The log-probabilities called `name`: a list of numbers, or of [log-probability, token id, text]."""
    values = meta.get(name)
    if not isinstance(values, list) or len(values) != count:
        found = f"{len(values)} entries" if isinstance(values, list) else "nothing"
        raise BadAnswer(f"the engine sent {found} as {name} for {count} tokens")
    numbers = [value[0] if isinstance(value, Sequence) else value for value in values]
    try:
        array = np.array(numbers, dtype="<f4")
    except (TypeError, ValueError) as error:
        raise BadAnswer(f"the engine's {name} are not numbers: {error}") from error
    if not np.isfinite(array).all():
        raise BadAnswer(f"the engine sent a {name} that is no finite number")
    return array


def spans(meta: dict[str, Any], count: int) -> list[Span]:
    """The versions that the engine stamped; they cover every token, in order, or the answer is refused."""
    found = meta.get("weight_versions")
    if not isinstance(found, list) or not found:
        raise BadAnswer("the engine stamped no weight_versions; SGLang 0.5.23 or newer is needed")
    result, end = [], 0
    for span in found:
        try:
            start, stop, version = int(span["start"]), int(span["end"]), str(span["version"])
            Version.parse(version)
        except (KeyError, TypeError, ValueError, BadMessage) as error:
            raise BadAnswer(f"the engine stamped a version span that cannot be read: {span!r:.100}") from error
        if start != end or stop < start:
            raise BadAnswer(f"the engine's version spans leave a hole at token {end}")
        if stop > start:
            result.append(Span(start, stop, version))
        end = stop
    if end != count:
        raise BadAnswer(f"the engine's version spans cover {end} of {count} tokens")
    return result


def read(event: bytes, *, cuts: bool) -> Answer:
    """The answer in the last event of a stream. `cuts`: top-p or top-k cut, so `behaviour` differs from `raw`.

    Raises `EngineRefused` for an error event, `Cut` for an answer that was ended from outside, `BadAnswer` for one that
    cannot be what it says; an answer without a token is never returned.
    """
    try:
        reply = msgspec.json.decode(event)
    except msgspec.DecodeError as error:
        raise BadAnswer(f"the engine's reply is not JSON: {error}") from error
    if not isinstance(reply, dict) or not isinstance(reply.get("meta_info", {}), dict):
        raise BadAnswer(f"the engine's reply is not an answer: {event[:100]!r}")
    if "error" in reply:
        raise EngineRefused(f"the engine refused: {said(reply['error'])}")
    meta = reply.get("meta_info", {})
    ids = reply.get("output_ids")
    finish = meta.get("finish_reason")
    count = len(ids) if isinstance(ids, list) else 0
    if not isinstance(finish, dict) or not isinstance(finish.get("type"), str):
        raise BadAnswer(f"the engine's reply ended after {count} tokens without a finish_reason")
    if finish["type"] == "abort":
        when = "before the first token" if count == 0 else f"after {count} tokens"
        raise Cut(f"the engine aborted the request {when}: {said(finish.get('message'))}", count)
    if not isinstance(ids, list) or count == 0:
        raise BadAnswer(f"the engine sent no token (finish_reason {finish['type']!r})")
    raw = column(meta, "output_token_logprobs", count)
    return Answer(
        token_ids=np.array(ids, dtype="<i4"),
        raw=raw,
        behaviour=column(meta, "output_token_sampling_logprobs", count) if cuts else raw,
        spans=spans(meta, count),
        finish_reason=finish["type"],
        text=str(reply.get("text") or ""),
        cached_tokens=int(meta.get("cached_tokens") or 0),
    )


def said(error: Any) -> str:
    """An engine's error in one line: SGLang sends text, or an object with `message`."""
    text = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(text or "no reason given").split())[:300]
