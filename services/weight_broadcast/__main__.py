"""weight-broadcast: check the trainer's snapshots, serve them to engines, announce them, retire old versions.

consumes  snapshot.<job>, ledger.<job>.trainer, presence.>     from trainer; from everyone
produces  weights.<job> (last value), files over HTTP          for rollout, trainer, scheduler
stalls    never: engines keep the version that they have
"""

from __future__ import annotations

import argparse


def main() -> int:
    description = __doc__.splitlines()[0]
    argparse.ArgumentParser(prog="python -m services.weight_broadcast", description=description).parse_args()

    from services.weight_broadcast.config import Settings
    from services.weight_broadcast.handlers import WeightBroadcast
    from shared.wire.service import Service, run

    async def serve(service: Service[Settings]) -> None:
        await WeightBroadcast(service).run()

    return run(serve, "weight-broadcast", Settings())


if __name__ == "__main__":
    raise SystemExit(main())
