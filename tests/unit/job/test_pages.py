"""What is shipped beside the code is true: the page on the job file, and every example."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shared.job.document import EXAMPLE, document
from shared.job.load import load_job, load_job_file

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def test_the_page_on_the_job_file_is_what_the_schema_says() -> None:
    page = (ROOT / "docs" / "job-file.md").read_text(encoding="utf-8")
    assert page == document(), "run: python -m shared.job.document > docs/job-file.md"


def test_the_pages_own_example_loads() -> None:
    assert load_job(EXAMPLE).name == "sums"


def test_the_examples_are_the_ones_we_promise() -> None:
    assert [path.stem for path in EXAMPLES] == [
        "chain_sum", "chain_sum_mixed", "custom_reward", "hf_folder", "tiny", "tiny_sft",
    ]  # fmt: skip


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_and_what_it_points_to_is_there(path: Path) -> None:
    spec = load_job_file(path)
    assert spec.name == path.stem.replace("_", "-")
    assert path.read_text(encoding="utf-8").startswith("# ")
    if spec.data.jsonl is not None:
        assert Path(spec.data.jsonl).is_file()
    if spec.data.huggingface is not None:
        assert Path(spec.data.huggingface).is_dir()
    for component in spec.reward:
        if component.function:
            assert Path(component.function.rpartition(":")[0]).is_file()


@pytest.mark.parametrize("folder", ["custom_reward", "hf_folder"])
def test_the_examples_data_is_what_its_script_writes(folder: str, tmp_path: Path) -> None:
    source = ROOT / "examples" / folder
    script = shutil.copy(source / "make_data.py", tmp_path)
    subprocess.run([sys.executable, script], check=True, timeout=60, env=dict(os.environ))
    made = [path for path in tmp_path.rglob("*") if path.suffix in (".csv", ".jsonl")]
    assert made
    for path in made:
        assert path.read_bytes() == (source / path.relative_to(tmp_path)).read_bytes()
