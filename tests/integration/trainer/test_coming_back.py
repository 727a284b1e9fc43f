"""What survives a kill, a broken disk and a full one: the recorded batches, in the promised order."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from shared.wire.ledger import Ledger
from shared.wire.messages import batch_digest


def weights(w, version: str) -> dict[str, np.ndarray]:
    return load_file(w.data_dir / "checkpoints" / w.job / version / "model" / "model.safetensors")


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


async def test_a_killed_trainer_redoes_the_recorded_steps_to_the_same_weights_and_keeps_its_versions_apart(
    world, nats_url, start_trainer, make_spec, wait_until
):
    async with (
        world("killed", make_spec(steps=4, checkpoint={"every": 4})) as w,
        world("straight", make_spec(steps=4, checkpoint={"every": 4})) as straight,
    ):
        w.ready, straight.ready = 3, 4
        trainer = start_trainer(nats_url)
        await straight.trained_to(4)
        await w.announced_step(3)
        first = trainer.kill_child(w.job)
        asked = len(w.asked)
        w.ready = 4
        await w.trained_to(4)
        assert first not in trainer.children()
        (record,) = w.trained
        epoch = record.epoch  # 2, or more where a loaded machine lost the lock on the way
        assert (record.first, record.last, record.checkpoint) == (1, 4, f"4.{epoch}") and epoch >= 2
        assert {a.step for a in w.asked[asked:] if a.trainer_epoch == epoch} == {
            4
        }  # the recorded are not asked for again
        steps = [(e.step, e.body["redone"], e.body["version"]) for e in await w.events("step")]
        assert steps[-4:] == [(step, step < 4, f"{step}.{epoch}") for step in (1, 2, 3, 4)]
        assert same(weights(w, record.checkpoint), weights(straight, straight.trained[0].checkpoint))
        names = {p.name for p in (w.data_dir / "snapshots" / w.job).iterdir()}
        assert f"4.{epoch}" in names and not {f"{step}.{epoch}" for step in (1, 2, 3)} & names


async def test_a_redone_step_is_announced_when_nobody_can_fetch_the_newest_version_any_more(
    world, nats_url, start_trainer, make_spec
):
    async with world("lost", make_spec(steps=3, checkpoint={"every": 4})) as w:
        w.ready = 2
        trainer = start_trainer(nats_url)
        newest = await w.announced_step(2)
        shutil.rmtree((w.data_dir / newest.path).parent)
        trainer.kill_child(w.job)
        w.ready = 3
        await w.trained_to(3)
        redone = [e for e in await w.events("step") if e.body["version"].endswith(".2")]
        assert [(e.step, e.body["redone"]) for e in redone] == [(1, False), (2, False), (3, False)]


async def test_a_broken_checkpoint_is_set_aside_and_the_one_before_it_is_used(
    world, nats_url, start_trainer, make_spec, wait_until
):
    async with world("broken", make_spec(steps=6)) as w:
        w.ready = 5
        trainer = start_trainer(nats_url)
        await w.trained_to(4)
        await w.announced_step(5)
        trainer.kill()
        state = w.data_dir / "checkpoints" / w.job / "4.1" / "trainer.pt"
        bytes_ = bytearray(state.read_bytes())
        bytes_[len(bytes_) // 2] ^= 1
        state.write_bytes(bytes_)
        start_trainer(nats_url)

        async def again():
            await w.ledger.append(lambda: None)
            return any(record.checkpoint == "4.2" for record in w.trained)

        await wait_until(again, "steps 3 and 4 recorded again")
        assert any("4.1 is broken" in e.body["text"] for e in await w.events("notice"))
        assert (w.data_dir / "checkpoints" / w.job / "4.1.set-aside").is_dir()
        w.ready = 6
        await w.trained_to(6)
        assert [(r.first, r.last, r.checkpoint) for r in w.trained] == [
            (1, 2, "2.1"), (3, 4, "4.1"), (3, 4, "4.2"), (5, 6, "6.2"),
        ]  # fmt: skip


async def test_a_checkpoint_whose_record_was_never_written_is_adopted_by_the_next_holder(
    world, nats_url, start_trainer, make_spec
):
    spec = make_spec(steps=3, checkpoint={"every": 2})
    async with world("written", spec) as first:
        first.ready = 2
        trainer = start_trainer(nats_url)
        await first.trained_to(2)
        trainer.kill()
    async with world("killed", spec) as w:
        # The folder that this job's epoch 1 left when it was killed before it wrote the record.
        await w.record(1)
        await w.record(2)
        await Ledger(w.bus, w.job, "trainer", "killed", lambda *_: None).open()
        left = w.data_dir / "checkpoints" / w.job / "2.1"
        shutil.copytree(first.data_dir / "checkpoints" / first.job / "2.1", left)
        manifest = json.loads((left / "manifest.json").read_text())
        manifest |= {"job": w.job, "batches": batch_digest([w.batched[1], w.batched[2]])}
        (left / "manifest.json").write_text(json.dumps(manifest))
        w.ready = 3
        start_trainer(nats_url)
        await w.trained_to(3)
        assert [(r.epoch, r.first, r.last, r.checkpoint) for r in w.trained] == [(2, 1, 2, "2.1"), (2, 3, 3, "3.2")]
        assert [e.step for e in await w.events("step")] == [3]


async def test_half_a_checkpoint_is_no_checkpoint(world, nats_url, start_trainer, make_spec):
    async with world("half", make_spec(steps=2)) as w:
        half = w.data_dir / "checkpoints" / w.job / "2.1.writing"
        (half / "model").mkdir(parents=True)
        (half / "model" / "model.safetensors").write_bytes(b"half")
        w.ready = 2
        start_trainer(nats_url)
        await w.trained_to(2)
        assert w.checkpoints() == ["2.1"]


@pytest.fixture
def small_disk(tmp_path: Path):
    """`mount(path, size)`: a small file system there; off CI, skips where a user may not mount one."""
    mounted: list[Path] = []

    def mount(path: Path, size: str) -> None:
        path.mkdir(parents=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)], capture_output=True)
        if done.returncode and os.environ.get("CI") != "true":
            pytest.skip(f"cannot mount a tmpfs: {done.stderr.decode().strip()}")
        assert done.returncode == 0, done.stderr.decode()
        mounted.append(path)

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


async def test_a_full_disk_at_the_checkpoint_pauses_the_job_and_resume_goes_on(
    world, nats_url, start_trainer, make_spec, small_disk, wait_until
):
    async with world("full", make_spec(steps=2)) as w:
        root = w.data_dir / "checkpoints" / w.job
        small_disk(root, "4m")  # a checkpoint of the tiny model takes more than twice that
        w.ready = 2
        trainer = start_trainer(nats_url)

        async def paused():
            record = await w.state()
            return record if record.state == "paused" else None

        record = await wait_until(paused, "the job paused")
        assert "disk full" in record.reason and str(root) in record.reason and "\n" not in record.reason
        assert os.listdir(root) == [] and w.trained == []
        assert [e.body["state"] for e in await w.events("state")] == ["paused"]
        await wait_until(lambda: _gone(trainer), "the process of the paused job gone")
        subprocess.run(["mount", "-o", "remount,size=64m", str(root)], check=True)
        await w.set_state("running")
        await w.trained_to(2)
        assert json.loads((root / "2.2" / "manifest.json").read_text())["first"] == 1


async def _gone(trainer) -> bool:
    return not trainer.children()
