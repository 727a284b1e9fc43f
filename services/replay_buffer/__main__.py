"""replay-buffer: join scored samples to groups, form each step's batch, settle every sample.

consumes  scored.<job>.*.* (headers), ledger.<job>.*     from reward, scheduler, trainer
answers   batch.<job>                                    for trainer
produces  ledger.<job>.replay-buffer                     batched, dropped, dead, retired
stalls    until enough groups are complete; says which group is missing. One process holds a job, others stand by
"""

from __future__ import annotations

import argparse


def main() -> int:
    argparse.ArgumentParser(prog="python -m services.replay_buffer", description=__doc__.splitlines()[0]).parse_args()

    from services.replay_buffer.config import Settings
    from services.replay_buffer.handlers import ReplayBuffer
    from shared.wire.service import Service, run

    async def serve(service: Service[Settings]) -> None:
        ReplayBuffer(service).start()
        await service.stopping.wait()

    return run(serve, "replay-buffer", Settings())


if __name__ == "__main__":
    raise SystemExit(main())
