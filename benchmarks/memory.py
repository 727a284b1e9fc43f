"""What the stack weighs before a model is loaded: proportional set size, by service and together."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.stack import PROJECT, local_stack
from benchmarks.table import publish

SETTLE_SECONDS = 5.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, local_stack(Path(folder)):
        time.sleep(SETTLE_SECONDS)  # lazy imports of the first heartbeats are part of what it weighs
        ps = [sys.executable, "-m", "deploy.local", "ps", "--json", "--home", folder]
        listed = json.loads(subprocess.run(ps, cwd=PROJECT, check=True, capture_output=True).stdout)
        rows = []
        for row in listed:
            parent = psutil.Process(row["pid"])
            processes = [parent, *parent.children(recursive=True)]
            mebibytes = sum(process.memory_full_info().pss for process in processes) / 2**20
            rows.append((row["service"], len(processes), mebibytes))
    total = sum(mebibytes for _, _, mebibytes in rows)
    table = [[name, count, f"{mebibytes:.0f}"] for name, count, mebibytes in rows]
    table.append(["**together** (aim: under 1,200)", sum(count for _, count, _ in rows), f"{total:.0f}"])
    note = "Proportional set size of every process of an idle stack, one replica of each service."
    print(publish("memory", "Memory before a model is loaded", note, ["service", "processes", "MiB"], table))


if __name__ == "__main__":
    main()
