"""Rewards to advantages, within each group. Pure.

Groups are joined by their number, never by position or stride: any order, any size. A sample that was not graded
(`counted` false) moves nobody's mean and gets advantage 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

EQUAL = 1e-9  # rewards closer than this are one reward in floating point; their group teaches nothing


def advantages(
    groups: Sequence[int], rewards: Sequence[float], counted: Sequence[bool], kind: str
) -> np.ndarray:  # float64 [n]
    """`group_mean`: reward - mean of its group. `group_std`: that over the group's (population) standard deviation.

    A group whose rewards are all the same gets 0 throughout.
    """
    if kind not in ("group_mean", "group_std"):
        raise ValueError(f"no advantage of kind {kind!r}")
    group_of, reward_of = np.asarray(groups), np.asarray(rewards, dtype=np.float64)
    used = np.asarray(counted, dtype=bool)
    result = np.zeros(len(reward_of), dtype=np.float64)
    for group in np.unique(group_of):
        members = (group_of == group) & used
        values = reward_of[members]
        if len(values) == 0 or np.ptp(values) <= EQUAL:
            continue
        centred = values - values.mean()
        result[members] = centred / values.std() if kind == "group_std" else centred
    return result
