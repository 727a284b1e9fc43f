"""Seconds of a whole GRPO step (generate, score, train, new weights served), against TRL's `GRPOTrainer` on this CPU.

Ours is the whole local stack over HTTP: wall time from one step event to the next. TRL is one process. The two take
turns of a few steps, with the same model folder, prompts, token limits, group sizes, learning rate and precision; the
first step of each turn warms up and is not counted. Nobody else may need the cores: the note says how loaded they were.

The reward is a few patterns that tell the answers of a group apart. With a reward that gave a whole group the same
value our trainer would leave that group out, and the step would be short for the wrong reason.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.byte_model import make_10m
from benchmarks.stack import PROJECT, local_stack
from benchmarks.step_hops import HOPS, Batch, read_batches, timeline
from benchmarks.table import publish, spread
from benchmarks.trl_process import Step, trl
from gateway.client import ENDED, Client

THREADS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
GROUP_SIZE = 8
TURNS, COUNTED = 2, 3  # steps of a turn that are counted, after one that is not
AHEAD_WARM_UP, AHEAD_COUNTED = 1, 3  # with staleness 1: one run, and its last step has nothing left to overlap with
LEARNING_RATE = 1e-6
PATTERNS = [(rf"\A(?:[\s\S]{{{n}}})*\Z", weight) for n, weight in ((2, 1.0), (3, 0.61), (5, 0.37))]
PRECISIONS = {"bfloat16": "1.6 (never under 1.3)", "float32": "1"}


@dataclass(frozen=True)
class Workload:
    name: str
    model: str
    groups: int
    max_tokens: int

    @property
    def answers(self) -> int:
        return self.groups * GROUP_SIZE


@dataclass
class Found:
    """What was measured of one workload in one precision."""

    ours: list[float] = field(default_factory=list)
    ahead: list[float] = field(default_factory=list)  # staleness 1
    theirs: list[float] = field(default_factory=list)
    generate: list[float] = field(default_factory=list)  # TRL's share of it
    cpu: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "TRL": []})
    tokens: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "TRL": []})
    prompt_tokens: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "TRL": []})
    hops: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in HOPS})


def job_file(workload: Workload, rows: Path, precision: str, *, staleness: int, steps: int) -> str:
    """JSON is YAML."""
    return json.dumps(
        {
            "name": f"step-{staleness}",
            "model": workload.model,
            "data": {"jsonl": str(rows), "shuffle": False},
            "reward": [
                {"name": f"pattern_{i}", "kind": "regex", "pattern": pattern, "weight": weight}
                for i, (pattern, weight) in enumerate(PATTERNS)
            ],
            "algorithm": {
                "steps": steps, "group_size": GROUP_SIZE, "groups_per_step": workload.groups, "staleness": staleness,
                "learning_rate": LEARNING_RATE, "precision": precision,
            },
            "sampling": {"max_tokens": workload.max_tokens},
            "checkpoint": {"every": steps},
            "engine": {"dtype": precision},
            "retain": True,
        }
    )  # fmt: skip


def write_rows(path: Path, count: int) -> Path:
    """One-digit sums; as many as a turn needs, so that every turn has the same prompts."""
    import reasoning_gym

    settings = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    rows = reasoning_gym.create_dataset("chain_sum", size=count, seed=1, **settings)
    path.write_text("".join(json.dumps({k: row[k] for k in ("question", "answer")}) + "\n" for row in rows))
    return path


def cpu_by_process() -> dict[int, float]:
    """CPU seconds of everything that the benchmark has started, so far."""
    used = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used[process.pid] = times.user + times.system
    return used


def run_job(url: str, home: Path, text: str) -> tuple[list[dict[str, Any]], dict[int, Batch]]:
    """Its step events, each with the `cpu` seconds since the one before, and its batches, once it has ended."""
    cpu: dict[int, float] = {}
    with Client(url) as client:
        job = client.submit(text)["id"]
        before = cpu_by_process()
        for event in client.events(job):
            if event.event == "step":
                now = cpu_by_process()
                cpu[event.step] = sum(used - before.get(pid, 0.0) for pid, used in now.items())
                before = now
            elif event.event == "state" and event.body["state"] in ENDED:
                break
        ended = client.job(job)
        if ended["state"] != "completed":
            raise SystemExit(f"{job} is {ended['state']}: {ended['reason']} (logs in {home / 'logs'})")
        events = [event | {"cpu": cpu[event["step"]]} for event in client.metrics(job)["steps"]]
        return events, read_batches(home, job)


def our_turn(found: Found, url: str, home: Path, text: str) -> None:
    events, batches = run_job(url, home, text)
    for before, event in itertools.pairwise(events):
        batch = batches[event["step"]]
        found.ours.append(event["at"] - before["at"])
        found.cpu["ours"].append(event["cpu"])
        found.tokens["ours"].append(batch.tokens)
        found.prompt_tokens["ours"].append(batch.prompt_tokens)
        for name, seconds in timeline(before, event, batch).items():
            found.hops[name].append(seconds)


def our_run_ahead(found: Found, url: str, home: Path, text: str) -> None:
    events, _ = run_job(url, home, text)
    moments = [event["at"] for event in events][AHEAD_WARM_UP:-1]
    found.ahead.extend(later - earlier for earlier, later in itertools.pairwise(moments))


def their_turn(found: Found, step: Step) -> None:
    step()
    for _ in range(COUNTED):
        said = step()
        found.theirs.append(said["seconds"])
        found.generate.append(said["generate"])
        found.cpu["TRL"].append(said["cpu"])
        found.tokens["TRL"].append(said["tokens"])
        found.prompt_tokens["TRL"].append(said["prompt_tokens"])


def measure(workload: Workload, precision: str, scratch: Path) -> Found:
    found, home = Found(), scratch / "home"
    scratch.mkdir()
    rows = write_rows(scratch / "rows.jsonl", workload.groups * (1 + COUNTED))
    options = {
        "model": workload.model, "rows": str(rows), "answers": workload.answers, "group_size": GROUP_SIZE,
        "max_tokens": workload.max_tokens, "bf16": precision == "bfloat16", "learning_rate": LEARNING_RATE,
        "patterns": PATTERNS, "scratch": str(scratch / "trl"),
    }  # fmt: skip
    slots = {"SLIPSTREAM_ROLLOUT_SLOTS": str(workload.answers)}
    with local_stack(home, environment=THREADS | slots) as url, trl(options, scratch / "trl.log", THREADS) as step:
        for _ in range(TURNS):
            our_turn(found, url, home, job_file(workload, rows, precision, staleness=0, steps=1 + COUNTED))
            their_turn(found, step)
        steps = AHEAD_WARM_UP + AHEAD_COUNTED + 2
        our_run_ahead(found, url, home, job_file(workload, rows, precision, staleness=1, steps=steps))
    return found


def workloads(scratch: Path) -> list[Workload]:
    from shared.policy.resolve import resolve_model

    data = Path(os.environ.get("SLIPSTREAM_DATA_DIR", PROJECT / ".slipstream" / "data"))
    smollm2 = resolve_model("smollm2-135m-instruct", data)
    return [
        Workload("SmolLM2-135M, 16 x 32", str(smollm2.path.resolve()), groups=2, max_tokens=32),
        Workload("10M, 64 x 64", str(make_10m(scratch / "10m")), groups=8, max_tokens=64),
    ]


def step_row(workload: Workload, precision: str, found: Found) -> list[object]:
    ratio = statistics.median(found.theirs) / statistics.median(found.ours)
    tokens = [f"{statistics.mean(found.tokens[who]):.0f}" for who in ("ours", "TRL")]
    cpu = [f"{statistics.median(found.cpu[who]):.3g}" for who in ("ours", "TRL")]
    return [
        workload.name, precision, spread(found.ours), f"{statistics.mean(found.ahead):.3g}", spread(found.theirs),
        f"**{ratio:.2f}**", PRECISIONS[precision], " / ".join(cpu), " / ".join(tokens),
    ]  # fmt: skip


def hop_row(workload: Workload, precision: str, found: Found) -> list[object]:
    medians = [f"{statistics.median(found.hops[name]):.3g}" for name in HOPS]
    whole, generate = statistics.median(found.ours), statistics.median(found.generate)
    return [workload.name, precision, *medians, f"{whole:.3g}", f"{generate:.3g}"]


def main(names: Sequence[str] = (), precisions: Sequence[str] = tuple(PRECISIONS)) -> None:
    steps: list[list[object]] = []
    hops: list[list[object]] = []
    loads, began = [os.getloadavg()[0]], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for workload in workloads(scratch):
            if names and not workload.name.startswith(tuple(names)):
                continue
            for precision in precisions:
                found = measure(workload, precision, scratch / f"{workload.max_tokens}-{precision}")
                loads.append(os.getloadavg()[0])
                if found.prompt_tokens["ours"][-COUNTED:] != found.prompt_tokens["TRL"][-COUNTED:]:
                    print(f"the prompts differ: {found.prompt_tokens}", file=sys.stderr)
                steps.append(step_row(workload, precision, found))
                hops.append(hop_row(workload, precision, found))
                print(*steps[-1], *hops[-1][2:], sep=" | ", file=sys.stderr, flush=True)
    note = (
        f"Groups of {GROUP_SIZE}, the same prompts in turns of {COUNTED} counted steps; {TURNS * COUNTED} counted on "
        f"each side ({AHEAD_COUNTED} with staleness 1). Median (min to max). The machine's load average was "
        f"{loads[0]:.1f} before and {min(loads[1:]):.1f} to {max(loads[1:]):.1f} after each part; about 2 is our own."
    )
    header = [
        "model, answers x tokens", "precision", "our step, s", "staleness 1, s", "TRL 1.16 step, s", "TRL / ours",
        "aim at least", "CPU seconds a step, ours / TRL", "tokens a step, ours / TRL",
    ]  # fmt: skip
    print(publish("grpo_step", "A whole GRPO step", note, header, steps))
    header = ["model, answers x tokens", "precision", *HOPS, "our step", "TRL's generate"]
    note = "Median seconds of each hop with staleness 0, where none overlap; beside them what TRL takes to generate."
    print(publish("grpo_hops", "What each hop of our step costs", note, header, hops))
    print(f"took {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
