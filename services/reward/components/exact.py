"""exact: 1 when the answer is the row's answer, else 0. Numbers are equal as numbers; other text up to white space.

Case counts: for many tasks it is the answer.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

from services.reward.components.case import Component, Prepared

NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|[+-]?\.\d+", re.ASCII)
NUMBER_CHARACTERS = 1000


def number(text: str) -> Decimal | None:
    """`text` as an exact number (`1,000`, `7.0`, `-3`), or None."""
    plain = text.replace("\u2212", "-")
    if len(plain) > NUMBER_CHARACTERS or NUMBER.fullmatch(plain) is None:
        return None
    return Decimal(plain.replace(",", ""))


def normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def equal(answer: str, expected: str) -> bool:
    a, b = normalised(answer), normalised(expected)
    if a == b:
        return True
    x, y = number(a), number(b)
    return x is not None and y is not None and x == y


def prepare(component: Component) -> Prepared:
    return Prepared(lambda case: float(equal(case.text or "", component.expected(case))))
