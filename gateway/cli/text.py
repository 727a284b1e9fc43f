"""Numbers and times as people read them. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 30) -> str:
    """The last `width` values as bars between their least and greatest."""
    shown = [value for value in values if math.isfinite(value)][-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    span = high - low
    return "".join(BLOCKS[int((value - low) / span * (len(BLOCKS) - 1)) if span > 0 else 0] for value in shown)


def trend(values: Sequence[float]) -> str:
    """Whether the later half lies above the earlier one: an arrow, or nothing where two values are missing.

    Up or down only when the halves differ by more than the standard error of their difference.
    """
    shown = [value for value in values if math.isfinite(value)]
    if len(shown) < 2:
        return ""
    half = len(shown) // 2
    early, late = shown[:half], shown[-half:]
    difference = mean(late) - mean(early)
    error = math.sqrt(variance(early) / len(early) + variance(late) / len(late))
    if difference == 0 or abs(difference) <= error:
        return "→"
    return "↑" if difference > 0 else "↓"


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return sum((value - middle) ** 2 for value in values) / (len(values) - 1)


def number(value: Any, digits: int = 3) -> str:
    """A float with so many digits; - for what is missing."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return "-"
    return f"{value:.{digits}f}"


def percent(value: Any) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) and math.isfinite(value) else "-"


def with_error(value: Any, error: Any) -> str:
    """0.481 ± 0.031"""
    shown = number(value)
    return f"{shown} ± {number(error)}" if isinstance(error, int | float) and math.isfinite(error) else shown


def duration(seconds: float | None) -> str:
    """4s, 1m20s, 2h05m; - for unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def printable(text: str) -> str:
    """What a terminal may show: an answer's control characters would move the cursor, or worse."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def clipped(text: str, width: int) -> str:
    """On one line, at most `width` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= width else line[: width - 3] + "..."


def table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """Columns as wide as they need; numbers to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]
    right = [
        all(isinstance(row[i], int | float) or str(row[i])[:1] in "-+.0123456789" for row in rows)
        for i in range(len(header))
    ]
    lines = []
    for row in [list(header), *cells]:
        parts = [
            cell.rjust(width) if r else cell.ljust(width) for cell, width, r in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)
