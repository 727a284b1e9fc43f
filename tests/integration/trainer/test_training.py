"""The trainer as a process, over a real broker: versions, records and checkpoints appear in the promised order."""

from __future__ import annotations

import json

import numpy as np
from safetensors.numpy import load_file


async def test_a_job_is_trained_to_its_last_step_and_every_step_is_recorded(world, nats_url, start_trainer, make_spec):
    async with world("whole", make_spec()) as w:
        w.ready = 5
        start_trainer(nats_url)
        await w.trained_to(5)
        assert [(r.first, r.last, r.checkpoint) for r in w.trained] == [(1, 2, "2.1"), (3, 4, "4.1"), (5, 5, "5.1")]
        assert [r.oldest_kept_step for r in w.trained] == [0, 2, 4]
        newest = await w.announced_step(5)
        folder = w.data_dir / newest.path
        assert {f.name for f in newest.files} >= {"config.json", "model.safetensors", "tokenizer.json"}
        assert {f.name for f in newest.files} == {p.name for p in folder.iterdir()}
        steps = await w.events("step")
        assert [e.step for e in steps] == [1, 2, 3, 4, 5]
        body = steps[-1].body
        assert body["reward_mean"] == 0.5 and body["age_histogram"] == {"0": body["tokens"]} and body["loss"] != 0.0


async def test_the_version_and_the_checkpoint_of_a_step_are_the_same_weights(world, nats_url, start_trainer, make_spec):
    async with world("same", make_spec(steps=1)) as w:
        w.ready = 1
        start_trainer(nats_url)
        await w.trained_to(1)
        snapshot = w.data_dir / (await w.announced_step(1)).path
        checkpoint = w.data_dir / "checkpoints" / w.job / "1.1"
        served = load_file(snapshot / "model.safetensors")
        kept = load_file(checkpoint / "model" / "model.safetensors")
        assert served.keys() == kept.keys() and all(np.array_equal(served[k], kept[k]) for k in kept)
        before = load_file(w.data_dir / "models" / "tiny" / "model.safetensors")
        assert served.keys() == before.keys() and any(not np.array_equal(served[k], before[k]) for k in before)
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        assert manifest["batches"] == w.trained[0].digest and manifest["step"] == 1
