"""The command line: job commands (over HTTP, `gateway.cli`) and the local stack's (`deploy.local.cli`), joined here
because neither may know the other."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

EPILOG = """a first try:
  slipstream demo                                   everything below, once, in a few minutes
  slipstream up                                     in one terminal
  slipstream submit examples/chain_sum.yaml --wait  in another
  slipstream samples                                read what the model answered
  slipstream audit                                  nothing lost, nothing doubled

exit status: 0 it worked, 1 what was asked about failed, 2 bad usage or input, 3 no gateway answers
"""


def parser() -> argparse.ArgumentParser:
    from deploy.local.cli import add_parsers as add_stack
    from gateway.cli.parsers import add_parsers as add_jobs
    from slipstream.demo import add_parser as add_demo

    root = argparse.ArgumentParser(
        prog="slipstream", description="RL post-training of language models that loses and doubles no sample.",
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    root.add_argument("--version", action="store_true", help="print the version and exit")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    add_demo(commands)
    add_stack(commands)
    add_jobs(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    root = parser()
    args = root.parse_args(argv)
    if args.version:
        from importlib.metadata import version

        print(f"slipstream {version('slipstream-rl')}")
        return 0
    if args.command is None:
        root.print_help()
        return 2
    from gateway.cli.outcome import guarded

    return guarded(args.run, args)


if __name__ == "__main__":
    raise SystemExit(main())
