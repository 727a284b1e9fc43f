"""How long a person waits for the command line: `slipstream --help`, and `slipstream submit` to a running stack."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.stack import local_stack
from benchmarks.table import publish, spread

RUNS = 7
JOB = """
name: nothing
model: tiny
data: {reasoning_gym: spell_backward, size: 64, template: raw}
reward: [{name: right, kind: exact}]
algorithm: {steps: 1, groups_per_step: 1, group_size: 2}
sampling: {max_tokens: 2}
"""


def timed(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    slipstream = [sys.executable, "-m", "slipstream"]
    bare = [timed([sys.executable, "-c", "pass"]) for _ in range(RUNS)]
    shown = [timed([*slipstream, "--help"]) for _ in range(RUNS)]
    with tempfile.TemporaryDirectory() as folder, local_stack(Path(folder)) as url:
        job = Path(folder) / "job.yaml"
        job.write_text(JOB)
        submit = [*slipstream, "submit", "--url", url, str(job)]
        timed(submit)  # loads the model and the data once
        sent = [timed(submit) for _ in range(RUNS)]
    rows = [
        ["`python -c pass`", spread(bare), ""],
        ["`slipstream --help`", spread(shown), "0.5 s"],
        ["`slipstream submit`", spread(sent), "1 s"],
    ]
    header = ["command", "seconds, median (min to max)", "aim under"]
    print(publish("command_line", "The command line", f"Whole processes, {RUNS} runs each.", header, rows))


if __name__ == "__main__":
    main()
