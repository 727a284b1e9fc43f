"""Commands that change something: submit, validate, pause, resume, cancel, delete."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from gateway.cli.outcome import FAILED, OK, say_error
from gateway.cli.watch import follow
from gateway.client import Client
from gateway.client_errors import Invalid, NotFound

DELETE_SECONDS = 60.0


def submit(args: argparse.Namespace) -> int:
    with Client(args.url) as client:
        if args.file == "-":
            job = client.submit(_standard_input(), base=_here(), key=args.key)
        else:
            job = client.submit_file(args.file, key=args.key)
        if not args.wait:
            if args.json:
                print(json.dumps(job))
            else:
                print(f"{job['id']} is {job['state']}: `slipstream watch {job['id']}` shows it")
                _print_facts(job["facts"])
            return OK
        if not args.json:
            print(f"{job['id']} is {job['state']}", flush=True)
        style = "json" if args.json else "live" if sys.stdout.isatty() else "plain"
        return follow(client, job, style).code


def validate(args: argparse.Namespace) -> int:
    with Client(args.url) as client:
        if args.file == "-":
            found = client.validate(_standard_input(), base=_here())
        else:
            found = client.validate_file(args.file)
    if args.json:
        print(json.dumps(found))
    else:
        print(f"{args.file}: fine")
        _print_facts(found["facts"])
    return OK


def pause(args: argparse.Namespace) -> int:
    return _act(args, "pause")


def resume(args: argparse.Namespace) -> int:
    return _act(args, "resume")


def cancel(args: argparse.Namespace) -> int:
    return _act(args, "cancel")


def _act(args: argparse.Namespace, action: str) -> int:
    with Client(args.url) as client:
        job: dict[str, Any] = getattr(client, action)(args.job)
    print(json.dumps(job) if args.json else f"{job['id']} is {job['state']}")
    return OK


def delete(args: argparse.Namespace) -> int:
    with Client(args.url) as client:
        job = client.job(args.job)
        if not args.yes:
            if not sys.stdin.isatty():
                raise Invalid("delete asks before it deletes: give --yes where nobody can answer", 422, [])
            if input(f"delete {job['id']} ({job['state']}) with its checkpoints? [y/N] ").strip().lower() != "y":
                return FAILED
        job = client.delete(job["id"])
        gone = False if args.no_wait else _wait_until_gone(client, job["id"])
    if args.json:
        print(json.dumps({"id": job["id"], "deleted": gone}))
    elif gone or args.no_wait:
        print(f"{job['id']} is {'deleted' if gone else 'being deleted'}")
    if gone or args.no_wait:
        return OK
    say_error(f"{job['id']} is marked but not gone after {DELETE_SECONDS:g} s: is a scheduler alive? (`slipstream ps`)")
    return FAILED


def _wait_until_gone(client: Client, id: str) -> bool:
    deadline = time.monotonic() + DELETE_SECONDS
    while time.monotonic() < deadline:
        try:
            client.job(id)
        except NotFound:
            return True
        time.sleep(0.2)
    return False


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise Invalid("standard input is not UTF-8 text", 422, []) from error


def _here() -> str:
    from pathlib import Path

    return str(Path.cwd())


def _print_facts(facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        print(f"  {name.replace('_', ' ')}: {value if isinstance(value, str) else json.dumps(value)}")
