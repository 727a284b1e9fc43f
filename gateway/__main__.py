"""gateway: the HTTP API.

consumes  KV jobs, ledger.<job>.*, trajectory.<job>.>, scored.<job>.>, events.<job>.*, presence.>
produces  KV jobs (create, change of state), check.data and check.reward requests, events.<job>.state
stalls    never: while the broker is away it answers 503 with the reason, and /healthz stays 200
"""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    argparse.ArgumentParser(prog="python -m gateway", description="Slipstream's HTTP API.").parse_args()
    from gateway.config import Settings
    from gateway.server import PortTaken, serve

    try:
        return serve(Settings())
    except PortTaken as error:
        print(f"slipstream gateway: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
