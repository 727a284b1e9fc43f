"""Reading samples: the stored ones, one batch, and a whole life."""

import asyncio

import pytest


@pytest.fixture
def filled(make, book):
    """(bus, book): a job with one trained group, one in flight, and an evaluated sample."""

    async def fill():
        bus = await make.new_bus(make.JOB)
        ids = [make.sample(0, 0), make.sample(0, 1)]
        sequences = {}
        for number, id in enumerate(ids):
            sequences[id] = await make.publish_scored(bus, id, reward=float(number), text=f"answer {number}")
        await make.publish_scored(bus, make.sample(1, 0), reward=0.5)
        await make.publish_scored(bus, f"{make.JOB}/eval-0/3/0", sample_class="eval")
        await make.publish_trajectory(bus, make.sample(1, 1))
        book.issue(0, 1)
        book.requeue(ids[0])
        book.batch(1, *ids, sequences=sequences)
        book.train(1, 1)
        book.retire(1, 1)
        await book.publish(bus)
        await create(bus, make)
        return bus

    async def create(bus, make):
        from shared.wire.jobs import create_job

        await create_job(bus, make.job_record())

    return fill


def get(make, filled, *paths):
    async def scenario():
        async with make.http_gateway(bus=await filled()) as (http, _, _):
            return [await http.get(f"/v1/jobs/{make.JOB}{path}") for path in paths]

    return asyncio.run(scenario())


def test_samples_come_newest_first_with_text_reward_and_step(make, filled):
    (reply,) = get(make, filled, "/samples?sample_class=train")
    page = reply.json()
    assert [s["sample"] for s in page["samples"]] == [make.sample(1, 0), make.sample(0, 1), make.sample(0, 0)]
    assert [s["step"] for s in page["samples"]] == [None, 1, 1]
    newest = page["samples"][1]
    assert newest["text"] == "answer 1"
    assert newest["reward"] == 1.0
    assert newest["components"] == {"right": 1.0}
    assert newest["versions"] == {"0.1": 3}
    assert newest["row"]["question"] == "5+7?"
    assert newest["mean_logprob"] == pytest.approx(-1 / 3, abs=1e-3)
    assert newest["tokens"] == 3
    assert page["next_before"] is None


def test_pages_continue_and_filters_hold(make, filled):
    first, second, evaluated, batch, none = get(
        make,
        filled,
        "/samples?limit=3",
        "/samples?limit=3&before=2",
        "/samples?sample_class=eval",
        "/samples?step=1",
        "/samples?step=9",
    )
    assert len(first.json()["samples"]) == 3
    assert first.json()["next_before"] == 2
    assert [s["sample"] for s in second.json()["samples"]] == [make.sample(0, 0)]
    assert [s["sample"] for s in evaluated.json()["samples"]] == [f"{make.JOB}/eval-0/3/0"]
    assert evaluated.json()["samples"][0]["step"] is None
    assert {s["sample"] for s in batch.json()["samples"]} == {make.sample(0, 0), make.sample(0, 1)}
    assert none.json()["samples"] == []


def test_a_life_tells_all_moments_of_a_sample_and_its_body(make, filled):
    trained, waiting, evaluated, absent = get(
        make, filled, "/samples/0/0", "/samples/1/1", "/samples/3/0?eval_round=0", "/samples/77/0"
    )
    life = trained.json()
    assert life["place"] == "trained and retired"
    happened = [moment["what"] for moment in life["moments"]]
    assert sorted(happened) == sorted(["issued", "requeued", "batched", "trained", "retired", "scored"])
    assert [what for what in happened if what != "scored"] == ["issued", "requeued", "batched", "trained", "retired"]
    assert life["body"]["text"] == "answer 0"
    assert waiting.json()["place"] == "in trajectory"
    assert waiting.json()["body"]["text"] == "12"
    assert evaluated.json()["place"] == "in scored"
    assert absent.status_code == 404
    assert "never issued" in absent.json()["error"]


def test_metrics_give_each_step_once_and_the_last_one_told(make):
    from shared.wire import messages as m
    from shared.wire import topics
    from shared.wire.jobs import create_job

    async def scenario():
        async with make.http_gateway() as (http, bus, _):
            await create_job(bus, make.job_record())
            for step, reward in ((1, 0.1), (2, 0.2), (2, 0.25), (3, float("inf"))):
                event = m.Event(job=make.JOB, event="step", at=1.0, step=step, body={"reward_mean": reward})
                await bus.publish(topics.event_subject(make.JOB, "step"), m.encode(event))
            for body in ({"round": 0, "solve_rate": 0.1}, {"round": 0, "solve_rate": 0.1}, {"round": 1}):
                event = m.Event(job=make.JOB, event="evaluation", at=1.0, body=body)
                await bus.publish(topics.event_subject(make.JOB, "evaluation"), m.encode(event))
            status = (await http.get(f"/v1/jobs/{make.JOB}/status")).json()
            return (await http.get(f"/v1/jobs/{make.JOB}/metrics?from_step=2")).json(), status

    metrics, status = asyncio.run(scenario())
    assert [(row["step"], row["reward_mean"]) for row in metrics["steps"]] == [(2, 0.25), (3, None)]
    assert [row["round"] for row in metrics["evaluations"]] == [0, 1]
    assert status["step"]["step"] == 3
    assert status["progress"] is None
    assert "rollout" in status["missing"]


def test_the_ledger_is_read_page_by_page(make, filled):
    first, rest = get(make, filled, "/ledger?limit=4", "/ledger?from_sequence=5")
    assert [row["record"] for row in first.json()["records"]] == ["epoch", "epoch", "epoch", "issued"]
    assert first.json()["next_sequence"] == 5
    assert [row["record"] for row in rest.json()["records"]] == ["issued", "requeued", "batched", "trained", "retired"]
    assert rest.json()["next_sequence"] is None
