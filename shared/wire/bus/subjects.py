"""Subjects and their wildcards: `*` stands for one token, a last `>` for one or more."""

from __future__ import annotations

from shared.wire.bus.api import BusError


def matches(pattern: str, subject: str) -> bool:
    """Whether `subject` is one that `pattern` names."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for place, want in enumerate(wanted):
        if want == ">":
            return place < len(tokens)
        if place >= len(tokens) or (want != "*" and want != tokens[place]):
            return False
    return len(wanted) == len(tokens)


def checked(subject: str, *, wildcards: bool = False) -> str:
    """`subject` if a server would take it; a `BusError` that names it otherwise."""
    tokens = subject.split(".")
    bad = any(not token or any(c.isspace() for c in token) for token in tokens)
    if bad or (not wildcards and any(token in ("*", ">") for token in tokens)):
        raise BusError(f"{subject!r} is not a subject")
    return subject


def job_of(subject: str) -> str:
    """The job whose subject it is: by the rule of `topics`, the second token."""
    tokens = subject.split(".")
    return tokens[1] if len(tokens) > 1 else tokens[0]
