"""`jobs` and `show`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from gateway.cli.lines import evaluation_line, missing_line, step_line
from gateway.cli.outcome import OK
from gateway.cli.progress import Progress
from gateway.cli.text import clipped, table, when
from gateway.cli.watch import the_job
from gateway.client import Client
from gateway.sse import JobEvent


def jobs(args: argparse.Namespace) -> int:
    with Client(args.url) as client:
        found = list(client.jobs(state=args.state, name=args.name, limit=args.limit))
    if args.json:
        print(json.dumps(found))
        return OK
    if not found:
        print("no jobs: `slipstream submit JOB.yaml` starts one")
        return OK
    rows = [
        (j["id"], j["state"], j["algorithm"], j["steps"], clipped(j["model"], 40), when(j["created_at"]), j["reason"])
        for j in found
    ]
    print(table(rows, ("ID", "STATE", "KIND", "STEPS", "MODEL", "CREATED", "REASON")))
    return OK


def show(args: argparse.Namespace) -> int:
    with Client(args.url) as client:
        status = client.status(the_job(client, args.job)["id"])
    if args.json:
        print(json.dumps(status))
        return OK
    job = status["job"]
    print(f"{job['id']} is {job['state']}" + (f": {job['reason']}" if job["reason"] else ""))
    print(f"  {job['algorithm']} of {job['model']}, {job['steps']} steps, created {when(job['created_at'])}")
    progress = Progress.of(job)
    for event in (status["progress"], status["step"]):
        if event is not None:
            progress.apply(_event(event))
    if status["step"] is not None:
        print(f"  {step_line(progress)}")
    elif progress.in_stages:
        print(f"  samples: {progress.in_stages}")
    for event in status["evaluations"]:
        print(f"  {evaluation_line(event['body'])}")
    for name, value in job["facts"].items():
        print(f"  {name.replace('_', ' ')}: {value if isinstance(value, str) else json.dumps(value)}")
    if status["missing"]:
        print(f"  {missing_line(status['missing'])}")
    return OK


def _event(event: dict[str, Any]) -> JobEvent:
    return JobEvent(**event)
