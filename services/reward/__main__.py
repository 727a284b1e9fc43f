"""reward: turns a trajectory into a score.

consumes  trajectory.<job>.>   from rollout (demonstrations: from the scheduler), acknowledged once scored and stored
produces  scored.<job>....     for replay-buffer, trainer and, in evaluation rounds, the scheduler
answers   check.reward         does the reward of a job that is about to be submitted work?
stalls    never for long: a grader that hangs is killed at its own time-out, and other samples go on
"""

from __future__ import annotations

import argparse


def main() -> int:
    argparse.ArgumentParser(prog="python -m services.reward", description=__doc__.split("\n")[0]).parse_args()
    from services.reward.config import Settings
    from services.reward.wiring import serve
    from shared.wire.service import run

    return run(serve, "reward", Settings())


if __name__ == "__main__":
    raise SystemExit(main())
