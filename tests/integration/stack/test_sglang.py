"""One whole job with real SGLang on this CPU as the engine (SGLANG=1): every other process is the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.sglang,
    pytest.mark.skipif(os.environ.get("SGLANG") != "1", reason="needs a real SGLang: SGLANG=1"),
]


def test_a_job_runs_to_its_end_over_real_sglang(own_stack, make_job):
    venv = Path(os.environ.get("SLIPSTREAM_SGLANG_VENV", PROJECT / ".slipstream" / "sglang"))
    subprocess.run([PROJECT / "deploy" / "sglang_cpu" / "install.sh", venv], check=True, stdout=sys.stderr)
    launcher = PROJECT / "deploy" / "sglang_cpu" / "launch.py"
    own_stack.environment |= {
        "SLIPSTREAM_ROLLOUT_ENGINE": "sglang",
        "SLIPSTREAM_ROLLOUT_ENGINE_COMMAND": f"{venv / 'bin' / 'python'} {launcher}",
    }
    own_stack.up()
    job = own_stack.client.submit(make_job(model="tiny-qwen2", evaluation={"prompts": 4}))["id"]
    audit = own_stack.finish(job, 240)
    assert audit["trained"] == 4 * 2 * 4
    assert [row["step"] for row in own_stack.client.metrics(job)["steps"]] == [1, 2, 3, 4]
