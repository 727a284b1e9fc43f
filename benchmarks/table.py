"""A benchmark's result: rows of named figures, printed as a Markdown table and kept in `benchmarks/results/`."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def spread(values: Sequence[float]) -> str:
    """`median (min to max)` to three significant digits."""
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def publish(name: str, title: str, note: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The table as Markdown; also written to `results/<name>.md`."""
    lines = [f"### {title}", "", note, ""]
    for row in (header, ["---"] * len(header), *rows):
        lines.append("| " + " | ".join(str(cell) for cell in row) + " |")
    lines += ["", f"Python {platform.python_version()}, {processor()}."]
    text = "\n".join(lines) + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text)
    return text


def processor() -> str:
    """The processor's name and the number of cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.processor()}, {cores} cores"
    names = [line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {cores} cores"
