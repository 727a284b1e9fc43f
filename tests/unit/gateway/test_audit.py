"""The audit over real stream contents: where every sample is, and what is lost."""

import asyncio

from gateway.audit import audit_job
from shared.wire import topics


def run(coroutine):
    return asyncio.run(coroutine)


def test_samples_in_flight_are_found_where_they_are(book, make):
    async def scenario():
        bus = await make.new_bus(make.JOB)
        book.issue(0, 1, 2)
        book.give_up(make.sample(2, 1))
        await make.publish_trajectory(bus, make.sample(0, 1))
        await make.publish_trajectory(bus, make.sample(1, 0))
        await make.publish_scored(bus, make.sample(1, 0))  # stored before its trajectory is acknowledged: counts once
        await make.publish_scored(bus, make.sample(1, 1))
        await make.publish_scored(bus, f"{make.JOB}/eval-0/0/0", sample_class="eval")
        await book.publish(bus)
        return await audit_job(bus, make.job_record())

    audit = run(scenario())
    assert audit.balanced, audit.problems
    assert (audit.issued, audit.in_flight) == (6, 6)
    assert audit.in_flight_where == {"waiting": 2, "trajectory": 1, "scored": 2, "given_up": 1, "batched": 0}
    assert audit.evaluation_samples_stored == 1


def test_a_job_that_has_not_begun_balances(make):
    async def scenario():
        return await audit_job(await make.new_bus(), make.job_record())

    audit = run(scenario())
    assert audit.balanced
    assert audit.issued == 0


def test_a_batched_sample_whose_body_is_gone_is_lost(book, make):
    async def scenario():
        bus = await make.new_bus(make.JOB)
        ids = make.sample(0, 0), make.sample(0, 1)
        sequences = {id: await make.publish_scored(bus, id) for id in ids}
        stored = bus.follow(topics.scored(make.JOB).name, live=False)
        digests = {one.headers["Sample"]: one.headers["Digest"] async for one in stored}
        book.issue(0)
        book.batch(1, *ids, sequences=sequences, digests=digests)
        await book.publish(bus)
        whole = await audit_job(bus, make.job_record())
        await bus.purge(topics.scored(make.JOB).name, f"scored.{make.JOB}.0.1")
        return whole, await audit_job(bus, make.job_record())

    whole, lost = run(scenario())
    assert whole.balanced, whole.problems
    assert not lost.balanced
    assert [(p["kind"], p["samples"]) for p in lost.problems] == [("lost", [make.sample(0, 1)])]


def test_a_body_that_differs_from_its_batch_is_named(book, make):
    async def scenario():
        bus = await make.new_bus(make.JOB)
        id = make.sample(0, 0)
        sequence = await make.publish_scored(bus, id)
        book.issue(0, n=1)
        book.batch(1, id, sequences={id: sequence}, digests={id: "another"})
        await book.publish(bus)
        return await audit_job(bus, make.job_record())

    assert [(p["kind"], p["samples"]) for p in run(scenario()).problems] == [("altered", [make.sample(0, 0)])]


def test_bodies_that_no_kept_checkpoint_needs_may_be_gone(book, make):
    async def scenario():
        bus = await make.new_bus(make.JOB)
        book.issue(0, n=1)
        book.batch(1, make.sample(0, 0))
        book.train(1, 1, kept=1)
        book.retire(1, 1)
        await book.publish(bus)
        return await audit_job(bus, make.job_record())

    audit = run(scenario())
    assert audit.balanced, audit.problems
    assert (audit.trained, audit.in_flight) == (1, 0)


def test_an_ended_job_with_a_sample_that_was_never_settled_has_lost_it(make):
    async def scenario(state):
        bus = await make.new_bus(make.JOB)
        book = make.Book()
        book.issue(0)
        book.drop(make.sample(0, 0), reason="job ended")
        await book.publish(bus)
        return await audit_job(bus, make.job_record(state=state))

    for state in ("completed", "cancelled"):
        audit = run(scenario(state))
        assert not audit.balanced
        assert audit.problems[0]["kind"] == "lost"
        assert audit.problems[0]["samples"] == [make.sample(0, 1)]
    assert run(scenario("failed")).balanced  # a failed job may be resumed: its samples are in flight


def test_stored_samples_that_nobody_issued_are_named(book, make):
    async def scenario():
        bus = await make.new_bus(make.JOB)
        book.issue(0)
        await make.publish_scored(bus, make.sample(4, 0))
        await book.publish(bus)
        return await audit_job(bus, make.job_record())

    assert [(p["kind"], p["samples"]) for p in run(scenario()).problems] == [("unknown", [make.sample(4, 0)])]


def test_a_ledger_record_that_cannot_be_read_is_a_problem_and_the_rest_is_read(book, make):
    async def scenario():
        bus = await make.new_bus(make.JOB)
        book.issue(0)
        await book.publish(bus)
        await bus.publish(topics.ledger_subject(make.JOB, "trainer"), b"\xc1")
        await bus.publish(topics.ledger_subject(make.JOB, "scheduler"), b"{}")
        return await audit_job(bus, make.job_record())

    audit = run(scenario())
    assert [p["kind"] for p in audit.problems] == ["unreadable", "unreadable"]
    assert audit.ledger_sequence == 6
    assert audit.issued == 2


def test_bodies_of_a_batch_that_the_end_of_the_job_dropped_may_be_gone(book, make):
    async def scenario():
        bus = await make.new_bus(make.JOB)
        ids = make.sample(0, 0), make.sample(0, 1)
        book.issue(0)
        book.batch(1, *ids)
        book.drop(*ids, reason="job ended")
        await book.publish(bus)
        return await audit_job(bus, make.job_record(state="cancelled"))

    audit = run(scenario())
    assert audit.balanced, audit.problems
    assert audit.dropped == 2
