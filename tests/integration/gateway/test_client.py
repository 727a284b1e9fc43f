"""The Python client over real HTTP."""

import asyncio
import itertools
import json
import signal
import threading
import time

import pytest

from gateway.client import Client
from gateway.client_errors import BrokenDownload, Invalid, NotFound, TooLarge, Unavailable, Unreachable, WrongState
from shared.wire import messages as m
from shared.wire import topics

numbers = itertools.count()


@pytest.fixture
def job(services):
    """A running job that no other test has."""
    id = f"client-{next(numbers):06x}"
    services.create(id)
    return id


def test_a_submitted_file_is_a_job_with_facts(gateway, services, job_file):
    services.serve()
    made = gateway.client.submit_file(job_file)
    assert made["facts"] == {"rows": 7}
    assert gateway.client.job(made["id"]) == made
    assert made["id"] in [job["id"] for job in gateway.client.jobs(name="sums")]


def test_submits_at_once_with_one_key_from_many_clients_give_one_job(gateway, services, job_file):
    services.serve()
    found = []

    def submit():
        with Client(gateway.url) as client:
            found.append(client.submit_file(job_file, key="the-same")["id"])

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_refusals_are_errors_of_their_kind_with_one_line(gateway, services, job, tmp_path):
    client = gateway.client
    with pytest.raises(Invalid) as bad:
        client.submit("name: x\nmodle: tiny")
    assert "modle" in dict(bad.value.errors)
    with pytest.raises(TooLarge, match="over the limit"):
        client.submit("#" * 2_000_000)
    with pytest.raises(Invalid, match="No such file"):
        client.submit_file(tmp_path / "absent.yaml")
    with pytest.raises(NotFound, match="no job"):
        client.job("absent")
    with pytest.raises(WrongState, match="cannot resume"):
        client.cancel(job)
        client.resume(job)
    with pytest.raises(WrongState, match="no checkpoint yet"):
        client.export(job, tmp_path / "model")
    assert not list(tmp_path.glob("*model*"))
    for error in (bad.value,):
        assert "\n" not in str(error)


def test_without_the_services_that_check_the_submit_names_who_is_missing(start_gateway, nats_server, job_file):
    gateway = start_gateway(nats_server().url).until_ready()
    with pytest.raises(Unavailable, match="no scheduler is alive"):
        gateway.client.submit_file(job_file)


def test_no_gateway_is_one_line(tmp_path):
    with Client("http://127.0.0.1:1") as client, pytest.raises(Unreachable, match="no answer from the gateway"):
        client.job("any")
    with pytest.raises(Invalid, match="no address"):
        Client("localhost:8400")


def test_events_are_read_to_the_end_of_the_job_by_id(gateway, services, job):
    sequences = [services.tell(job, "step", step, loss=1.0 / step) for step in (1, 2, 3)]
    stream = gateway.client.events(job)
    first = [next(stream) for _ in range(2)]
    stream.close()
    assert [(e.id, e.step) for e in first] == [(sequences[0], 1), (sequences[1], 2)]
    later = gateway.client.events(job, after=first[-1].id)
    assert next(later).step == 3
    services.tell(job, "state", state="completed")
    assert next(later).body == {"state": "completed"}
    later.close()


def test_a_watcher_outlives_the_gateway_and_misses_nothing(start_gateway, services, nats_url, job):
    first = start_gateway(nats_url).until_ready()
    with Client(first.url, patience_seconds=30) as client:
        stream = client.events(job)
        services.tell(job, "step", 1)
        assert next(stream).step == 1
        assert first.stop(signal.SIGKILL) == -9
        services.tell(job, "step", 2)
        start_gateway(nats_url, listen=first.listen)
        assert next(stream).step == 2
        services.tell(job, "step", 3)
        assert next(stream).step == 3
        stream.close()


def test_events_can_be_read_with_asyncio(gateway, services, job):
    for step in (1, 2):
        services.tell(job, "step", step)

    async def scenario():
        found = []
        stream = gateway.client.async_events(job)
        async for event in stream:
            found.append(event.step)
            if len(found) == 2:
                break
        await stream.aclose()
        return found

    assert asyncio.run(scenario()) == [1, 2]


def test_a_wait_ends_when_the_job_does(gateway, services, job):
    with pytest.raises(TimeoutError, match="still running"):
        gateway.client.wait(job, timeout_seconds=0)
    ender = threading.Timer(0.2, services.do, [services.bus.bucket("jobs").get(job)])
    ender.start()
    gateway.client.cancel(job)
    from shared.wire.jobs import change_job

    def cancelled(record):
        import msgspec

        return msgspec.structs.replace(record, state="cancelled")

    services.do(change_job(services.bus, job, cancelled))
    assert gateway.client.wait(job, timeout_seconds=10)["state"] == "cancelled"
    ender.join()


@pytest.fixture
def checkpoint(gateway, services, job):
    """The job has a durable checkpoint 2.1; gives its folder."""
    folder = gateway.data / "checkpoints" / job / "2.1"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model" / "model.safetensors").write_bytes(bytes(range(256)) * 20_000)
    digests = {f"model/{file.name}": m.digest(file.read_bytes()) for file in (folder / "model").iterdir()}
    (folder / "manifest.json").write_text(json.dumps({"files": digests}))

    async def record():
        await services.bus.declare(topics.job_streams(job))
        trained = m.Trained(epoch=1, first=1, last=2, digest="d", checkpoint="2.1", oldest_kept_step=0)
        await services.bus.publish(topics.ledger_subject(job, "trainer"), m.encode(trained))

    services.do(record())
    return folder


def test_an_export_is_the_whole_folder_under_its_name(gateway, job, checkpoint, tmp_path):
    target = tmp_path / "deep" / "model"
    made = gateway.client.export(job, target)
    assert made["step"] == 2
    for file in (checkpoint / "model").iterdir():
        assert (target / file.name).read_bytes() == file.read_bytes()
    assert sorted(path.name for path in target.parent.iterdir()) == ["model"]
    with pytest.raises(Invalid, match="not an empty folder"):
        gateway.client.export(job, target)


def test_a_damaged_file_is_no_export(gateway, job, checkpoint, tmp_path):
    (checkpoint / "model" / "config.json").write_text('{"model_type": "LLAMA"}')
    with pytest.raises(BrokenDownload, match=r"config\.json"):
        gateway.client.export(job, tmp_path / "model")
    assert list(tmp_path.glob("*model*")) == []


def test_ten_thousand_jobs_are_listed_within_seconds(start_gateway, nats_server, until):
    """Timed loosely: a page must not cost what the whole list does."""
    from shared.wire.bus import connect
    from shared.wire.jobs import create_job

    server = nats_server()
    gateway = start_gateway(server.url).until_ready()

    async def fill():
        bus = await connect(server.url, name="test")
        spec = {"name": "sums", "model": "tiny", "algorithm": {"steps": 3}}

        async def make(numbers):
            for number in numbers:
                await create_job(
                    bus,
                    m.JobRecord(
                        id=f"sums-{number:06x}",
                        name="sums",
                        spec=spec,
                        digest="d",
                        state="completed",
                        created_at=float(number),
                        updated_at=0.0,
                    ),
                )

        await asyncio.gather(*(make(range(start, 10_000, 64)) for start in range(64)))
        await bus.close()

    asyncio.run(fill())
    until(lambda: gateway.client._json("GET", "/v1/jobs", params={"limit": 1})["total"] == 10_000, "all jobs")
    began = time.monotonic()
    ids = [job["id"] for job in gateway.client.jobs()]
    assert time.monotonic() - began < 20
    assert ids == [f"sums-{number:06x}" for number in reversed(range(10_000))]
