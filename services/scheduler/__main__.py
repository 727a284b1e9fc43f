"""scheduler: draws prompts, admits samples under the staleness rule, leases them to workers, runs evaluations.

consumes  KV jobs; ledger.<job>; weights.<job>; scored.<job>.eval.>   from gateway, all, weight-broadcast, reward
produces  ledger.<job>.scheduler (issued, requeued, gave_up, ending)  to replay-buffer
          trajectory.<job>.> (demonstrations of a supervised job)     to reward
          the job's state; events evaluation, progress, notice        to gateway
answers   lease.<job>  from rollout;  check.data  from gateway
stalls    a job whose trainer or workers stand still: nothing more is admitted, and a notice says what is waited for
"""

from __future__ import annotations

import argparse


def main() -> int:
    argparse.ArgumentParser(prog="python -m services.scheduler", description=__doc__.split("\n")[0]).parse_args()
    from services.scheduler.config import Settings
    from services.scheduler.handlers import serve
    from shared.wire.service import run

    return run(serve, "scheduler", Settings())


if __name__ == "__main__":
    raise SystemExit(main())
