"""Every random draw of a job follows from its one seed, by name.

A seed is a function of the job's seed and of *what* is drawn, never of when, by whom, or at which attempt. The job's
id, which has a random part, takes no part: two runs of one file draw the same.
"""

from __future__ import annotations

import hashlib

from shared.wire.messages import SampleKey

SEED_BITS = 31


def derived_seed(job_seed: int, *what: str | int) -> int:
    """A number below 2**31 for `what`, unrelated to that of any other `what` or job seed."""
    text = "\x00".join([str(job_seed), *map(str, what)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> (64 - SEED_BITS)


def data_seed(job_seed: int, part: str = "all") -> int:
    """For making the rows of a reasoning-gym task (`DataPart.name`)."""
    return derived_seed(job_seed, "data", part)


def order_seed(job_seed: int, epoch: int) -> int:
    """For the order of the rows in pass `epoch` over the data (0, 1, ...)."""
    return derived_seed(job_seed, "order", epoch)


def trainer_seed(job_seed: int) -> int:
    """For whatever the trainer draws."""
    return derived_seed(job_seed, "trainer")


def sampling_seed(job_seed: int, sample: str) -> int:
    """For the tokens of `sample` (a whole sample id); the engine adds the position."""
    key = SampleKey.parse(sample)
    round_name = "train" if key.eval_round is None else f"eval-{key.eval_round}"
    return derived_seed(job_seed, "sampling", round_name, key.group, key.index)
