"""Whether a sample's trajectory is stored already: first in `trajectory`, then in `scored`.

In this order, since the reward service stores the score before it takes the trajectory away: what is in neither was in
neither at the first look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from shared.wire.bus.api import Bus
from shared.wire.messages import SampleKey
from shared.wire.topics import scored, scored_subject, trajectories, trajectory_subject

AT_ONCE = 32


async def stored(bus: Bus, keys: Iterable[SampleKey]) -> set[SampleKey]:
    """Those of `keys` that are finished."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def look(key: SampleKey) -> SampleKey | None:
        async with gate:
            if await bus.get(trajectories(key.job).name, subject=trajectory_subject(key)) is not None:
                return key
            if await bus.get(scored(key.job).name, subject=scored_subject(key)) is not None:
                return key
            return None

    return {key for key in await asyncio.gather(*map(look, keys)) if key is not None}
