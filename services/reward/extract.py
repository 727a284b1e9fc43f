"""What part of an answer is graded. Pure; linear in the text, except `regex`, which only runs in a killable process.

`None` says that the answer lacks the part: the model did not give one, so it is worth 0, which is no grading failure.
"""

from __future__ import annotations

import re

# Thousands separators count only in groups of three, so "1,2,3" ends in 3; a minus between two operands is no sign.
NUMBER = re.compile(r"(?<![\w)\]}])[-\u2212]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\d+(?:\.\d+)?", re.ASCII)
KINDS = ("whole", "last_number", "tag", "regex")


def whole(text: str) -> str:
    return text.strip()


def last_number(text: str) -> str | None:
    """The last number, without thousands separators: `"7 + 5 = 1,012."` gives `"1012"`."""
    last = None
    for last in NUMBER.finditer(text):  # noqa: B007 - only the last match is wanted, in constant memory
        pass
    return None if last is None else last[0].replace(",", "").replace("\u2212", "-")


def tag(text: str, name: str) -> str | None:
    """What stands in the last complete `<name>...</name>`; an answer cut before the closing tag has none."""
    opening, closing = f"<{name}>", f"</{name}>"
    end = text.rfind(closing)
    start = text.rfind(opening, 0, end) if end >= 0 else -1
    return None if start < 0 else text[start + len(opening) : end].strip()


def regex(text: str, pattern: re.Pattern[str]) -> str | None:
    """The first group of the last match (the whole match where the pattern has no group)."""
    last = None
    for last in pattern.finditer(text):  # noqa: B007
        pass
    if last is None:
        return None
    found: str | None = last[1] if pattern.groups else last[0]
    return found


def extract(kind: str, text: str, *, tag_name: str, pattern: re.Pattern[str] | None) -> str | None:
    """The part of `text` that `kind` names; `pattern` is needed for `regex` only."""
    if kind == "whole":
        return whole(text)
    if kind == "last_number":
        return last_number(text)
    if kind == "tag":
        return tag(text, tag_name)
    if kind == "regex" and pattern is not None:
        return regex(text, pattern)
    raise ValueError(f"extract {kind!r} is none of {', '.join(KINDS)}")
