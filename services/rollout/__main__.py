"""rollout: owns one engine and turns leases into trajectories.

consumes  lease.<job> (answers of the scheduler), weights.<job>, KV jobs
produces  trajectory.<job>.<group>.<index>, lease.<job> (asks)
stalls    while no job runs or its scheduler has nothing to give, and while its engine starts
"""

from __future__ import annotations

import argparse


def main() -> int:
    argparse.ArgumentParser(prog="python -m services.rollout", description=__doc__.split("\n")[0]).parse_args()
    from services.rollout.config import Settings
    from services.rollout.wiring import serve
    from shared.wire.service import run

    return run(serve, "rollout", Settings())


if __name__ == "__main__":
    raise SystemExit(main())
