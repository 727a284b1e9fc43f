"""The loop, whole: jobs go from prompt to weights and back through all services of one stack."""

import asyncio

import pytest

from shared.wire import bus, topics

pytestmark = pytest.mark.slow


def test_a_job_runs_to_its_end_and_its_ledger_balances(stack, submit):
    job = submit(evaluation={"prompts": 8})
    audit = stack.finish(job)
    assert audit["trained"] == 4 * 2 * 4
    metrics = stack.client.metrics(job)
    assert [row["step"] for row in metrics["steps"]] == [1, 2, 3, 4]
    rounds = sorted((e["version_step"], e["mode"]) for e in metrics["evaluations"])
    assert rounds == [(0, "greedy"), (0, "sampled"), (4, "greedy"), (4, "sampled")]
    assert all(e["prompts"] == 8 for e in metrics["evaluations"])


def test_a_sample_can_be_followed_from_issue_to_retirement(stack, submit):
    job = submit(retain=True)
    stack.finish(job)
    page = stack.client.samples(job, limit=5)["samples"]
    assert len(page) == 5
    life = stack.client.sample(f"{job}/0/0")
    happened = [moment["what"] for moment in life["moments"]]
    assert [what for what in happened if what in ("issued", "batched", "trained", "retired")] == [
        "issued", "batched", "trained", "retired",
    ]  # fmt: skip
    assert life["body"] is not None


def test_the_trained_model_is_a_folder_that_transformers_loads_and_it_changed(stack, submit, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    job = submit(algorithm={"steps": 2, "group_size": 4, "groups_per_step": 2, "learning_rate": 1e-3, "staleness": 0})
    stack.finish(job)
    stack.client.export(job, tmp_path / "model")
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    first = AutoModelForCausalLM.from_pretrained(stack.data / "models" / "tiny", dtype=torch.float32)
    assert any(not torch.equal(a, b) for a, b in zip(trained.parameters(), first.parameters(), strict=True))


def test_two_jobs_with_different_models_at_once_both_finish(stack, submit):
    first = submit(name="llama", model="tiny")
    second = submit(name="qwen", model="tiny-qwen2")
    stack.finish(first)
    stack.finish(second)


def test_pause_holds_the_steps_and_resume_goes_on(stack, submit, until):
    job = submit(algorithm={"steps": 30, "group_size": 4, "groups_per_step": 2, "learning_rate": 1e-4})
    until(lambda: stack.client.metrics(job)["steps"], "first step")
    stack.client.pause(job)
    until(lambda: stack.client.job(job)["state"] == "paused", "state paused")
    leased = stack.client.status(job)["progress"]["body"].get("leased", 0)
    assert leased == 0
    stack.client.resume(job)
    stack.finish(job)


def test_cancel_drops_what_is_in_flight_and_keeps_ledger_and_checkpoints(stack, submit, until, tmp_path):
    job = submit(algorithm={"steps": 1000, "group_size": 4, "groups_per_step": 2, "learning_rate": 1e-4})
    until(lambda: len(stack.client.metrics(job)["steps"]) >= 3, "third step")
    stack.client.cancel(job)
    until(lambda: stack.client.job(job)["state"] == "cancelled", "state cancelled")
    audit = stack.client.audit(job)
    assert audit["balanced"], audit
    assert audit["in_flight"] == 0
    stack.client.export(job, tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_delete_leaves_no_stream_no_consumer_no_key_and_no_file(stack, submit, until):
    job = submit()
    stack.finish(job)
    stack.client.delete(job)
    until(lambda: job not in [j["id"] for j in stack.client.jobs()], "end of the job")
    nats = next(row for row in stack.ps() if row["service"] == "nats")["ports"]["4222"]

    async def left():
        connection = await bus.connect(f"nats://127.0.0.1:{nats}", name="test")
        try:
            streams = [name for name in await connection.stream_names() if job in name]
            keys = [key for key in await connection.bucket("jobs").keys() if job in key]
            events = await connection.get(topics.EVENTS.name, subject=topics.event_subject(job, "state"))
            weights = await connection.get(topics.WEIGHTS.name, subject=topics.weights_subject(job))
            return streams, keys, events, weights
        finally:
            await connection.close()

    def nothing_left():
        return asyncio.run(left()) == ([], [], None, None) and not files_of(job)

    def files_of(job):
        return [path for path in stack.data.rglob("*") if job in path.name]

    until(nothing_left, f"clean stack: {files_of(job)}", 30)


def test_a_supervised_job_stops_at_its_solve_rate_and_an_rl_job_starts_from_it(stack, submit):
    sft = {"kind": "sft", "steps": 400, "groups_per_step": 16, "learning_rate": 3e-3, "stop_at": {"solve_rate": 0.02}}
    data = {"reasoning_gym": "spell_backward", "settings": {"min_word_len": 3, "max_word_len": 3}, "template": "raw"}
    right = [{"name": "right", "kind": "exact"}]
    rounds = {"prompts": 32, "every": 50, "modes": ["sampled"]}
    warm = submit(name="warm", algorithm=sft, data=data, reward=right, evaluation=rounds)
    stack.finish(warm, 240)
    assert len(stack.client.metrics(warm)["steps"]) < 400
    after = submit(name="after", model="job:warm", data=data, reward=right)
    stack.finish(after)
