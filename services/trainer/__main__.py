"""trainer: turn recorded batches into versions and checkpoints, one process a job.

consumes  the jobs; each job's process: batched (ledger) and bodies from scored
produces  each job's process: snapshot.<job>, trained (ledger), step events
stalls    while no batch can be formed; says so when no replay buffer answers
"""

from __future__ import annotations

import argparse

from services.trainer.config import Settings
from services.trainer.supervisor import Supervisor
from shared.wire.service import Service, run


async def main(service: Service[Settings]) -> None:
    await Supervisor(service).run()


if __name__ == "__main__":
    argparse.ArgumentParser(prog="trainer", description=(__doc__ or "").splitlines()[0]).parse_args()
    raise SystemExit(run(main, "trainer", Settings()))
