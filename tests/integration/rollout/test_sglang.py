"""The same rollout process over real SGLang on this CPU (SGLANG=1): it cannot tell which engine it drives."""

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.wire.messages import Version, array

ROOT = Path(__file__).parents[3]
Eventually = Callable[..., Awaitable[None]]
pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(os.environ.get("SGLANG") != "1", reason="needs a real SGLang: SGLANG=1"),
]


@pytest.fixture(scope="module")
def sglang() -> dict[str, str]:
    """The settings that make a worker start real SGLang."""
    venv = Path(os.environ.get("SLIPSTREAM_SGLANG_VENV", ROOT / ".slipstream" / "sglang"))
    subprocess.run([ROOT / "deploy" / "sglang_cpu" / "install.sh", venv], check=True, stdout=sys.stderr)
    launcher = ROOT / "deploy" / "sglang_cpu" / "launch.py"
    return {
        "SLIPSTREAM_ROLLOUT_ENGINE": "sglang",
        "SLIPSTREAM_ROLLOUT_ENGINE_COMMAND": f"{venv / 'bin' / 'python'} {launcher}",
    }


async def test_leases_become_trajectories_across_a_change_of_weights(
    rollouts: Any, played: Any, eventually: Eventually, sglang: dict[str, str], tmp_path: Path, models: Path
) -> None:
    started, server = rollouts
    async with played(server.url, "tiny-qwen2") as (scheduler,):
        cut = scheduler.offer(4, group=1, max_tokens=16, top_p=0.8)
        scheduler.offer(400, max_tokens=200)
        process = started.start(**sglang)
        await eventually(lambda: any(held.tokens for ask in scheduler.asks for held in ask.held), 180)
        await eventually(lambda: all(sample in scheduler.ended for sample in cut), 60)
        for step in (1, 2):
            await scheduler.announce(tmp_path, "tiny-qwen2", Version(step, 1), models)
            await eventually(lambda version=f"{step}.1": scheduler.asks[-1].version == version)
        seen = len(scheduler.ended)
        await eventually(lambda: len(scheduler.ended) >= seen + 4, 60)
        scheduler.queue.clear()
        await eventually(lambda: not scheduler.leased, 60)
        assert not [ended.error for ended in scheduler.ended.values() if ended.error]
        found = await scheduler.trajectories()
        assert sorted(found) == sorted(scheduler.ended)
        for made in found.values():
            answer = made.segments[-1]
            edges = [0, *(span.end for span in answer.spans)]
            assert [span.start for span in answer.spans] == edges[:-1] and edges[-1] == answer.length
            raw, behaviour = (array(answer.columns[name], "<f4") for name in ("raw", "behaviour"))
            assert np.isfinite(raw).all()
            if made.sample in cut:
                assert (behaviour >= raw - 1e-5).all() and (behaviour > raw + 1e-3).any()
        assert any(len(made.segments[-1].spans) > 1 for made in found.values())
        process.terminate()
        await eventually(lambda: process.poll() == 0, 12)
