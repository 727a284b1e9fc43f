"""`slipstream up`, `down`, `ps`, `logs`, `scale`: the local stack's commands.

`up` stays in the foreground and Ctrl-C ends everything; `up -d` leaves the supervisor in the background.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

OK, FAILED, USAGE = 0, 1, 2


def add_parsers(subparsers: Any) -> None:
    """Adds the local stack's commands to the `slipstream` command line."""
    up = subparsers.add_parser(
        "up",
        help="start the stack on this machine, without Docker",
        description="Starts what docker-compose.yml lists as plain processes, with its own NATS server. "
        "Ctrl-C ends everything; data stays in the stack's folder for the next `up`.",
        epilog="exit codes: 0 ended as asked, 1 a service did not come up, 2 bad usage, or the port or folder is taken",
    )
    _home(up)
    up.add_argument("--scale", action="append", default=[], metavar="SERVICE=N", help="start N of a service")
    up.add_argument("--port", type=int, help="port of the HTTP gateway (default 8400, or SLIPSTREAM_PORT)")
    up.add_argument("--file", type=Path, help="the topology (default: the project's docker-compose.yml)")
    up.add_argument("-d", "--detach", action="store_true", help="return when it is up, leave it running")
    up.add_argument("--quiet", action="store_true", help="do not show the services' logs")
    up.set_defaults(run=_up)

    down = subparsers.add_parser(
        "down", help="end the local stack", description="Ends every process of the local stack."
    )
    _home(down)
    down.add_argument("--volumes", action="store_true", help="delete its data too: streams, checkpoints, models")
    down.set_defaults(run=_down)

    ps = subparsers.add_parser("ps", help="show the local stack's processes")
    _home(ps)
    ps.add_argument("--json", action="store_true", help="as JSON")
    ps.set_defaults(run=_ps)

    scale = subparsers.add_parser("scale", help="change how many of a service run, while jobs run")
    _home(scale)
    scale.add_argument("scale", nargs="+", metavar="SERVICE=N")
    scale.set_defaults(run=_scale)

    logs = subparsers.add_parser("logs", help="show what a service wrote")
    _home(logs)
    logs.add_argument("service", nargs="?", help="a service, or one replica as in rollout-2; all when empty")
    logs.add_argument("-f", "--follow", action="store_true", help="go on showing what comes")
    logs.add_argument("-n", "--lines", type=int, default=200, help="how many of the last lines (default 200)")
    logs.set_defaults(run=_logs)


def _home(parser: argparse.ArgumentParser) -> None:
    default = Path(os.environ.get("SLIPSTREAM_HOME", ".slipstream"))
    parser.add_argument("--home", type=Path, default=default, help="the stack's folder (default .slipstream)")


def _scales(words: list[str]) -> dict[str, int]:
    scales = {}
    for word in words:
        name, _, number = word.partition("=")
        if not number.isdigit():
            raise ValueError(f"--scale {word}: write SERVICE=N, as in rollout=3")
        scales[name] = int(number)
    return scales


def _say_error(text: object) -> int:
    print(f"slipstream: {text}", file=sys.stderr)
    return USAGE


def _up(args: argparse.Namespace) -> int:
    try:
        scales = _scales(args.scale)
    except ValueError as error:
        return _say_error(error)
    if args.detach:
        return _detach(args)
    from deploy.local.foreground import run_stack

    return run_stack(args.home, compose_file(args.file), scales, args.port, quiet=args.quiet)


def compose_file(named: Path | None) -> Path:
    """The topology file: the named one, the one here, or the project's own."""
    here = Path("docker-compose.yml")
    return named or (here if here.exists() else Path(__file__).resolve().parents[2] / "docker-compose.yml")


def _detach(args: argparse.Namespace) -> int:
    from deploy.local import control

    home = args.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    log = home / "supervisor.log"
    command = [sys.executable, "-m", "deploy.local", "up", "--home", str(home), "--quiet"]
    command += [word for pair in args.scale for word in ("--scale", pair)]
    command += ["--file", str(compose_file(args.file).resolve())] + (["--port", str(args.port)] if args.port else [])
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    while process.poll() is None:
        try:
            if control.ask(home, {"do": "ping"}, 2.0).get("up"):
                print(log.read_text().strip())
                return OK
        except control.NotRunning:
            pass
        time.sleep(0.1)
    print(log.read_text().strip(), file=sys.stderr)
    return process.returncode


def _down(args: argparse.Namespace) -> int:
    import shutil

    from deploy.local import control

    try:
        control.ask(args.home, {"do": "down"})
    except control.NotRunning as error:
        if not args.volumes:
            return _say_error(error)
    if args.volumes:
        for name in ("volumes", "logs"):
            shutil.rmtree(args.home / name, ignore_errors=True)
    return OK


def _ps(args: argparse.Namespace) -> int:
    from deploy.local import control

    try:
        rows = control.ask(args.home, {"do": "ps"})["processes"]
    except control.NotRunning as error:
        return _say_error(error)
    if args.json:
        print(json.dumps(rows))
        return OK
    print(f"{'SERVICE':<20}{'STATE':<12}{'PID':<9}{'RESTARTS':<10}{'UPTIME':<10}PORTS")
    for row in rows:
        ports = ", ".join(str(port) for port in row["ports"].values())
        name = f"{row['service']}-{row['replica']}"
        uptime = f"{row['uptime_seconds']:.0f} s"
        print(f"{name:<20}{row['state']:<12}{row['pid'] or '-':<9}{row['restarts']:<10}{uptime:<10}{ports}")
    return OK


def _scale(args: argparse.Namespace) -> int:
    from deploy.local import control

    try:
        reply = control.ask(args.home, {"do": "scale", "scale": _scales(args.scale)})
    except (control.NotRunning, ValueError) as error:
        return _say_error(error)
    return _say_error(reply["error"]) if "error" in reply else OK


def _logs(args: argparse.Namespace) -> int:
    from deploy.local.logs import show

    return show(args.home, args.service, args.lines, args.follow)
