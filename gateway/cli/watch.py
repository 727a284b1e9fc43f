"""`watch`, and the watching of `submit --wait` and `demo`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from gateway.cli.lines import line_for, missing_line
from gateway.cli.outcome import FAILED, INTERRUPTED, OK, say_error
from gateway.cli.progress import Progress
from gateway.client import Client
from gateway.client_errors import NotFound, SlipstreamError
from gateway.sse import HEARTBEAT, JobEvent


def watch(args: argparse.Namespace) -> int:
    with Client(args.url) as client:
        job = the_job(client, args.job)
        style = "json" if args.json else "plain" if args.plain or not sys.stdout.isatty() else "live"
        return follow(client, job, style).code


def the_job(client: Client, reference: str | None) -> dict[str, Any]:
    """The job that the user means; the newest when none is named."""
    if reference is not None:
        return client.job(reference)
    for newest in client.jobs(limit=1):
        return client.job(newest["id"])
    raise NotFound("no job yet: `slipstream submit JOB.yaml` starts one", 404)


class Followed:
    """How the watching ended."""

    def __init__(self, progress: Progress, code: int) -> None:
        self.progress = progress
        self.code = code


GOES_ON = "{0} goes on without you: `slipstream watch {0}` looks again, `slipstream cancel {0}` ends it"


def follow(client: Client, job: dict[str, Any], style: str, interrupted: str = GOES_ON) -> Followed:
    """Show a job until it ends, as `live`, `plain` or `json`. Ctrl-C ends the watching only, and says so."""
    progress = Progress.of(job)
    try:
        if style == "live":
            from gateway.cli.live import Display

            with Display() as display:
                display.show(progress)
                for _ in moments(client, progress):
                    display.show(progress)
        else:
            _print_lines(client, progress, as_json=style == "json")
    except KeyboardInterrupt:
        say_error(interrupted.format(progress.job))
        return Followed(progress, INTERRUPTED)
    if style == "live" and progress.reason and progress.state == "failed":
        say_error(f"{progress.job} failed: {progress.reason}")
    return Followed(progress, OK if progress.state == "completed" else FAILED)


def _print_lines(client: Client, progress: Progress, *, as_json: bool) -> None:
    said_missing: list[str] = []
    said_end = False
    for event in moments(client, progress):
        if as_json:
            if event is not None:
                print(json.dumps(asdict(event)), flush=True)
            continue
        line = line_for(event, progress) if event is not None else None
        if line is not None:
            print(line, flush=True)
            said_end = event is not None and event.event == "state" and progress.ended
        if progress.missing != said_missing:
            said_missing = progress.missing
            if said_missing:
                print(missing_line(said_missing), flush=True)
    if not as_json and not said_end:
        print(f"{progress.job} is {progress.state}" + (f": {progress.reason}" if progress.reason else ""), flush=True)


def moments(client: Client, progress: Progress) -> Iterator[JobEvent | None]:
    """Every event, already folded into `progress`; None where only time went by. Ends when the job has ended."""
    last_id = 0
    for item in client.beats(progress.job):
        if isinstance(item, JobEvent):
            last_id = item.id
            progress.apply(item)
            yield item
        if item is HEARTBEAT or (isinstance(item, JobEvent) and item.event == "state"):
            refresh(client, progress)
            if progress.ended:
                yield from _rest(client, progress, last_id)
                return
            yield None
    progress.state, progress.reason = "deleted", "the job was deleted"


def _rest(client: Client, progress: Progress, last_id: int) -> Iterator[JobEvent]:
    """The events that were told before the job's record said that it has ended."""
    state, reason = progress.state, progress.reason
    for event in client.past_events(progress.job, after=last_id):
        progress.apply(event)
        yield event
    progress.state, progress.reason = state, reason


def refresh(client: Client, progress: Progress) -> None:
    """The job's true state: an event may be lost, the record is not."""
    try:
        status = client.status(progress.job)
    except NotFound:
        progress.state, progress.reason = "deleted", "the job was deleted"
        return
    except SlipstreamError:
        return  # the stream of events says when the gateway is gone for good
    progress.see_job(status["job"])
    progress.missing = status["missing"]
