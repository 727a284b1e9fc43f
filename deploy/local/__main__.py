"""`python -m deploy.local up|down|ps|logs|scale`: the local stack's commands by themselves."""

import argparse

from deploy.local.cli import add_parsers

parser = argparse.ArgumentParser(prog="slipstream")
add_parsers(parser.add_subparsers(required=True, metavar="COMMAND"))
arguments = parser.parse_args()
raise SystemExit(arguments.run(arguments))
