"""Which row a group takes: a pure function of seed, pass and group number, the same on every machine and version.

Keys come from splitmix64 over (seed, place) and are sorted; no library's random generator is involved, since their
streams may change with a version.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shared.job.seeds import order_seed

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def permutation(seed: int, n: int) -> npt.NDArray[np.uint32]:
    """The numbers 0..n-1 in the order of `seed`."""
    with np.errstate(over="ignore"):
        x = (np.arange(1, n + 1, dtype=np.uint64) * GOLDEN) ^ np.uint64(splitmix(seed))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return np.argsort(x, kind="stable").astype(np.uint32)


def splitmix(seed: int) -> int:
    """One step of splitmix64: neighbouring seeds become unrelated."""
    mask = 2**64 - 1
    x = (seed + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


class Order:
    """Group g takes place g % n of pass g // n over n rows. Remembers the pass it was last asked about."""

    def __init__(self, seed: int, n: int, shuffle: bool) -> None:
        self.seed, self.n, self.shuffle = seed, n, shuffle
        self._pass = -1
        self._places: npt.NDArray[np.uint32] = np.empty(0, np.uint32)

    def place(self, group: int) -> int:
        epoch, at = divmod(group, self.n)
        if not self.shuffle:
            return at
        if epoch != self._pass:
            self._places = permutation(order_seed(self.seed, epoch), self.n)
            self._pass = epoch
        return int(self._places[at])
