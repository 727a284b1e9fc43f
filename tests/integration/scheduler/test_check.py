"""`check.data`: what is wrong with a job's model and data, said before the job is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.wire import topics
from shared.wire.bus import NoResponders, connect
from shared.wire.messages import CheckJob, CheckReply, decode, encode

JOB: dict[str, Any] = {
    "name": "a",
    "model": "tiny",
    "data": {"reasoning_gym": "chain_sum", "size": 300},
    "reward": [{"name": "exact", "kind": "exact"}],
    "evaluation": {"prompts": 20},
}


async def checked(bus, *jobs: dict[str, Any]) -> list[CheckReply]:
    replies = []
    for job in jobs:
        data = await bus.request(topics.CHECK_DATA, encode(CheckJob(spec=job)), timeout_seconds=20.0)
        replies.append(decode(CheckReply, data))
    return replies


@pytest.fixture
def ask(nats_server, start, until):
    """The replies to some job files."""

    async def replies(*jobs: dict[str, Any]) -> list[CheckReply]:
        url = nats_server().url
        start(url)
        bus = await connect(url, name="test")
        try:

            async def served() -> bool:
                try:
                    await bus.request(topics.CHECK_DATA, encode(CheckJob(spec={})))
                except NoResponders:
                    return False
                return True

            await until(served)
            return await checked(bus, *jobs)
        finally:
            await bus.close()

    return replies


async def test_a_good_job_gets_the_facts_that_its_record_keeps(ask) -> None:
    (reply,) = await ask(JOB)
    assert not reply.problems
    assert reply.facts["rows"] == 300
    assert reply.facts["training_rows"] + reply.facts["removed_rows"] == 300
    assert reply.facts["held_out_rows"] == 20
    assert (reply.facts["context_length"], reply.facts["architecture"]) == (256, "LlamaForCausalLM")
    assert len(reply.facts["model_digest"]) == 64


async def test_everything_wrong_is_named_by_its_path_in_one_line(ask, tmp_path: Path) -> None:
    good = '{"question": "a", "answer": "1"}\n'
    broken, empty, long, few = (tmp_path / f"{name}.jsonl" for name in ("broken", "empty", "long", "few"))
    broken.write_text(good + '{"question": \n' + good)
    empty.write_text("\n")
    long.write_text(good + json.dumps({"question": "x" * 300, "answer": "1"}) + "\n")
    few.write_text(good * 3)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64}')

    def job(**sections: Any) -> dict[str, Any]:
        return {**JOB, "evaluation": {}, **sections}

    cases = [
        (job(model="/nowhere"), "model", "does not exist"),
        (job(model=str(bare)), "model", "safetensors"),
        (job(data={"jsonl": str(tmp_path / "none")}), "data.jsonl", "does not exist"),
        (job(data={"jsonl": str(broken)}), "data.on_bad_row", f"{broken} line 2: is not JSON"),
        (job(data={"jsonl": str(empty)}), "data", "is empty"),
        (job(data={"jsonl": str(long)}), "data.on_long_prompt", f"{long} line 2: its prompt has"),
        (job(data={"jsonl": str(few), "prompt": "prompt"}), "data.on_bad_row", "has no column 'prompt'"),
        (job(data={"jsonl": str(few), "epochs": 1}), "data.epochs", "3 training rows x 1 passes"),
        (job(data={"huggingface": str(tmp_path / "none")}), "data.huggingface", "neither a folder nor"),
        (job(data={"reasoning_gym": "chain_sums"}), "data.reasoning_gym", "did you mean 'chain_sum'"),
        (job(sampling={"max_tokens": 256}), "sampling.max_tokens", "leave no place"),
        (job(data={"jsonl": str(few)}, evaluation={"prompts": 9}), "evaluation.prompts", "only 1 distinct"),
    ]
    replies = await ask(*(case[0] for case in cases))
    for (_, path, said), reply in zip(cases, replies, strict=True):
        (problem,) = reply.problems
        assert problem.path == path, problem
        assert said in problem.message
        assert "\n" not in problem.message


async def test_rows_that_are_skipped_are_counted(ask, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [f'{{"question": "q{n}", "answer": "1"}}\n' for n in range(9)]
    file.write_text("".join(rows) + "broken\n" + json.dumps({"question": "x" * 300, "answer": "1"}) + "\n")
    data = {"jsonl": str(file), "on_bad_row": "skip", "on_long_prompt": "skip"}
    (reply,) = await ask({**JOB, "data": data, "evaluation": {}})
    assert not reply.problems
    counts = [reply.facts[name] for name in ("rows", "training_rows", "skipped_bad_rows", "skipped_long_prompts")]
    assert counts == [11, 9, 1, 1]
