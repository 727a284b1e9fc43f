"""The demo: a stack, a job, a live display, and what came of it. The stack is handed in; this speaks HTTP only."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from gateway.cli.audit_text import balance_line
from gateway.cli.outcome import FAILED, INTERRUPTED, OK, say_error
from gateway.cli.text import with_error
from gateway.cli.watch import follow
from gateway.client import ENDED, Client
from gateway.client_errors import SlipstreamError, WrongState

OpenStack = Callable[[], AbstractContextManager[str]]


class StackFailed(Exception):
    """The stack did not come up; `code` is the exit status it gave."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def demo(job_file: Path, export: Path, open_stack: OpenStack, up: str = "up") -> int:
    """Run the demo; its exit status. `up`: the words that start this stack again."""
    print("starting the stack (NATS, gateway, six services) ...", flush=True)
    try:
        with open_stack() as url, Client(url) as client:
            return _run(client, url, job_file, export, up)
    except StackFailed as error:
        say_error(f"the stack did not start: {error}")
        return error.code or FAILED


def _run(client: Client, url: str, job_file: Path, export: Path, up: str) -> int:
    print(f"up at {url}; loading the model and checking the job ...", flush=True)
    job = client.submit_file(job_file)
    _end_earlier(client, job)
    print(f"{job['id']} is {job['state']}: {job['algorithm']} of {job['model']}, {job['steps']} steps\n", flush=True)
    farewell = f"ending the stack: {{0}} goes on at the next `slipstream {up}`, `slipstream cancel {{0}}` ends it then"
    followed = follow(client, job, "live" if sys.stdout.isatty() else "plain", farewell)
    if followed.code == INTERRUPTED:
        return INTERRUPTED
    job = client.job(job["id"])
    print()
    audit = client.audit(job["id"])
    print("\n".join(improvement(client.metrics(job["id"])["evaluations"])))
    saved = _export(client, job["id"], export) if job["state"] == "completed" else None
    verdict = "balanced: no sample lost, none counted twice" if audit["balanced"] else "NOT BALANCED"
    print(f"\nledger         {balance_line(audit)} ({verdict})")
    if saved is not None:
        print(f"trained model  {saved}")
    print("\n" + "\n".join(next_commands(job["id"], job_file, saved, up)))
    if job["state"] != "completed":
        say_error(f"{job['id']} {job['state']}: {job['reason']}")
    return OK if job["state"] == "completed" and audit["balanced"] else FAILED


def _end_earlier(client: Client, job: dict[str, Any]) -> None:
    """An interrupted demo leaves its job, which would go on now and take half the machine."""
    for other in client.jobs(name=job["name"]):
        if other["id"] != job["id"] and other["state"] not in (*ENDED, "cancelling", "deleting"):
            with contextlib.suppress(WrongState):  # it has just ended by itself
                client.cancel(other["id"])
                print(f"cancelled {other['id']}, left by an earlier demo", flush=True)


def _export(client: Client, job: str, directory: Path) -> Path | None:
    """The folder that the model is in now: `directory`, or the first free one beside it."""
    target, number = directory, 1
    while target.exists():
        number += 1
        target = directory.with_name(f"{directory.name}-{number}")
    try:
        client.export(job, target)
    except SlipstreamError as error:
        say_error(f"the model was not exported: {error}")
        return None
    return target


def improvement(evaluations: list[dict[str, Any]]) -> list[str]:
    """Held-out results before and after, for each mode: solve rate and shaped reward with standard errors. Pure."""
    lines = []
    for mode in ("greedy", "sampled"):
        rounds = sorted((e for e in evaluations if e.get("mode") == mode), key=lambda e: e.get("version_step", 0))
        if not rounds:
            continue
        before, after = rounds[0], rounds[-1]
        head = f"held out, {mode}: {before.get('prompts', '-')} prompts"
        samples = before.get("samples")
        lines.append(f"{head}, {samples} answers" if samples not in (None, before.get("prompts")) else head)
        for name, value, error in (
            ("solved exactly", "solve_rate", "solve_rate_stderr"),
            ("shaped reward", "reward_mean", "reward_stderr"),
        ):
            old, new = (with_error(r.get(value), r.get(error)) for r in (before, after))
            lines.append(f"  {name:<15} {old}  ->  {new}{_change(before, after, value, error)}")
    return lines or ["no held-out evaluation was asked for (`evaluation.prompts` in the job file)"]


def _change(before: dict[str, Any], after: dict[str, Any], value: str, error: str) -> str:
    """The difference, with its standard error as if the two were independent: a cautious for the same prompts."""
    numbers = [r.get(key) for r in (before, after) for key in (value, error)]
    if before is after or not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
        return ""
    old, old_error, new, new_error = (float(n) for n in numbers if n is not None)
    return f"   ({new - old:+.3f} ± {math.hypot(old_error, new_error):.3f})"


def next_commands(job: str, job_file: Path, model: Path | None, up: str) -> list[str]:
    """What a person might want to do now, as it can be typed here."""
    slipstream = _typed("slipstream")
    tried = [
        (f"{slipstream} {up}", "the stack again, with all that this run left in it; then, beside it:"),
        (f"{slipstream} samples {job}", "read the answers and their rewards"),
        (f"{slipstream} sample {job}/0/0", "one sample's whole life"),
        (f"{slipstream} audit {job}", "the ledger's balance"),
        (f"{slipstream} submit {shlex.quote(_short(job_file))} --wait", "another run of the same job file"),
    ]
    width = max(len(command) for command, _ in tried)
    lines = ["try next:", *(f"  {command:<{width}}  {what}" for command, what in tried)]
    if model is not None:
        load = f"from transformers import AutoModelForCausalLM as M; print(M.from_pretrained({str(model)!r}))"
        lines.append(f'  {_typed("python")} -c "{load}"')
    return lines


def _short(path: Path) -> str:
    """From here where it lies below, else as it is."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _typed(program: str) -> str:
    """The program's name where the shell finds ours, else the path to it from here."""
    ours = Path(sys.executable).parent / program
    found = shutil.which(program)
    return program if found is not None and Path(found) == ours else os.path.relpath(ours)
