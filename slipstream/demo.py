"""`slipstream demo`: the local stack for as long as one job takes."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any

JOB_FILE = Path(__file__).resolve().parents[1] / "examples" / "chain_sum.yaml"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="watch a language model get better on this machine",
        description="Starts the stack, submits a job over HTTP, shows it live, and says at the end what was learned.\n"
        "Takes a few minutes on two cores; ends everything it started.",
        epilog="examples:\n  slipstream demo\n  slipstream demo --job my_job.yaml --port 8401",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--job", type=Path, default=JOB_FILE, help="the job file (default examples/chain_sum.yaml)")
    parser.add_argument("--export", type=Path, default=Path("slipstream-demo-model"), help="where the model goes")
    parser.add_argument("--home", type=Path, default=default_home(), help="the stack's folder (default .slipstream)")
    parser.add_argument("--port", type=int, help="port of the HTTP gateway (default 8400, or SLIPSTREAM_PORT)")
    parser.set_defaults(run=_run)


def default_home() -> Path:
    return Path(os.environ.get("SLIPSTREAM_HOME", ".slipstream"))


def _run(args: argparse.Namespace) -> int:
    from gateway.cli.demo import demo
    from slipstream.stack import running_stack

    up = "up" if args.home == default_home() else f"up --home {shlex.quote(str(args.home))}"
    return demo(args.job, args.export, lambda: running_stack(args.home, args.port), up)
