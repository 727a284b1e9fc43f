"""The services' log files: shown, and followed, with the name of the process before each line."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from pathlib import Path
from typing import TextIO

POLL_SECONDS = 0.2


def chosen(logs: Path, service: str | None) -> list[Path]:
    """The log files of a service, of one replica (`rollout-2`), or of all."""
    files = sorted(logs.glob("*.log"))
    if service is None:
        return files
    return [f for f in files if f.stem == service or f.stem.rpartition("-")[0] == service]


def show(home: Path, service: str | None, lines: int, follow_on: bool) -> int:
    """Print the last lines; with `follow_on` what comes after, until Ctrl-C. Exit code 2 when there is no such log."""
    logs = home / "logs"
    files = chosen(logs, service)
    if not files:
        known = ", ".join(sorted({f.stem.rpartition("-")[0] for f in logs.glob("*.log")}))
        there = f"there are logs of {known}" if known else f"{logs} is empty: has `slipstream up` run here?"
        print(f"slipstream: no log of {service or 'any service'}: {there}", file=sys.stderr)
        return 2
    for file in files:
        with file.open(errors="replace") as text:
            for line in deque(text, maxlen=lines):
                print(f"{file.stem:<20} {line.rstrip()}")
    if follow_on:
        tail = Tail(logs, service, from_end=True)
        try:
            while True:
                tail.print_new(sys.stdout)
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            return 130
    return 0


class Tail:
    """Reads what is appended to the log files, new files included."""

    def __init__(self, logs: Path, service: str | None = None, *, from_end: bool) -> None:
        self._logs = logs
        self._service = service
        self._places: dict[Path, int] = {}
        if from_end:
            self._places = {file: file.stat().st_size for file in chosen(logs, service)}

    def print_new(self, out: TextIO) -> None:
        for file in chosen(self._logs, self._service):
            with file.open("rb") as text:
                text.seek(self._places.get(file, 0))
                for raw in text:
                    if not raw.endswith(b"\n"):
                        break
                    self._places[file] = self._places.get(file, 0) + len(raw)
                    print(f"{file.stem:<20} {raw.decode(errors='replace').rstrip()}", file=out)
        out.flush()


async def follow(logs: Path, out: TextIO) -> None:
    """Show everything that is appended from now on; ends when cancelled, with what is left shown."""
    tail = Tail(logs, from_end=True)
    try:
        while True:
            tail.print_new(out)
            await asyncio.sleep(POLL_SECONDS)
    finally:
        tail.print_new(out)
