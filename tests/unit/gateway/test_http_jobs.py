"""Jobs over HTTP: what is accepted, what is refused, and with which words."""

import asyncio

import pytest

from shared.wire import messages as m
from shared.wire import topics
from shared.wire.jobs import create_job, get_job


@pytest.fixture
def over_http(make):
    """`over_http(scenario, **gateway options)`: runs `scenario(http, bus, gateway)`."""

    def run(scenario, **options):
        async def whole():
            async with make.http_gateway(**options) as (http, bus, gateway):
                return await scenario(http, bus, gateway)

        return asyncio.run(whole())

    return run


def post(http, text, **options):
    return http.post("/v1/jobs", content=text, **options)


def test_a_job_is_created_with_defaults_filled_in_and_what_the_checks_found(over_http, make):
    async def scenario(http, bus, gateway):
        reply = await post(http, make.JOB_FILE)
        assert reply.status_code == 201, reply.text
        job = reply.json()
        assert reply.headers["location"] == f"/v1/jobs/{job['id']}"
        assert job["id"].startswith("sums-")
        assert job["state"] == "running"
        assert job["spec"]["algorithm"]["group_size"] == 8
        assert job["facts"] == {"rows": 4096}
        assert (await get_job(bus, job["id"])).spec == job["spec"]
        assert gateway.told == [(job["id"], "state", {"state": "running", "reason": "submitted"})]
        assert (await http.get(f"/v1/jobs/{job['id']}")).json() == job
        assert (await http.get("/v1/jobs/sums")).json() == job

    over_http(scenario, facts={"rows": 4096})


def test_the_services_that_check_are_given_the_whole_job(over_http, make):
    checked = []

    async def scenario(http, bus, gateway):
        await post(http, make.JOB_FILE)

    over_http(scenario, checked=checked)
    assert len(checked) == 2
    assert checked[0] == checked[1]
    assert checked[0]["sampling"]["max_tokens"] == 64


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        (("model: tiny", "modle: tiny"), "modle", "model"),
        (("model: tiny", "model: 7"), "model", "text"),
        (("kind: exact", "kind: exactly"), "reward.0.kind", "exact"),
        (("reasoning_gym: chain_sum", "reasoning_gim: chain_sum"), "data.reasoning_gim", "reasoning_gym"),
    ],
)
def test_a_wrong_field_is_named_with_its_path_and_what_would_be_right(over_http, make, change, path, words):
    async def scenario(http, bus, gateway):
        return await post(http, make.JOB_FILE.replace(*change))

    reply = over_http(scenario)
    assert reply.status_code == 422
    messages = {error["path"]: error["message"] for error in reply.json()["errors"]}
    assert path in messages
    assert words in messages[path]
    assert "\n" not in reply.json()["error"]


@pytest.mark.parametrize("text", ["a: [1", "- just\n- a list", "", "\x00", "{a: b", "a: &x [*x, *x]"])
def test_what_is_no_job_file_is_refused_in_one_line(over_http, text):
    async def scenario(http, bus, gateway):
        return await post(http, text)

    reply = over_http(scenario)
    assert reply.status_code == 422, reply.text
    assert reply.json()["error"]
    assert "\n" not in reply.json()["error"]


def test_bytes_that_are_not_text_are_refused(over_http):
    async def scenario(http, bus, gateway):
        return await post(http, b"\xff\xfe\x00name")

    assert over_http(scenario).status_code == 422


def test_what_the_world_refuses_is_told_with_its_path(over_http, make):
    problem = m.Problem(path="data.jsonl", message="rows.jsonl: line 3 is no JSON")

    async def scenario(http, bus, gateway):
        reply = await post(http, make.JOB_FILE)
        assert reply.status_code == 422
        assert {"path": problem.path, "message": problem.message} in reply.json()["errors"]
        assert (await http.get("/v1/jobs")).json()["total"] == 0

    over_http(scenario, problems=[problem])


@pytest.mark.parametrize(("alive", "missing"), [((), "scheduler"), (("data",), "reward"), (("reward",), "scheduler")])
def test_without_a_service_that_checks_the_submit_is_refused_and_names_it(over_http, make, alive, missing):
    async def scenario(http, bus, gateway):
        return await post(http, make.JOB_FILE)

    reply = over_http(scenario, checkers=alive)
    assert reply.status_code == 503
    assert f"no {missing} is alive" in reply.json()["error"]


def test_validate_finds_the_same_and_makes_no_job(over_http, make):
    async def scenario(http, bus, gateway):
        good = await http.post("/v1/jobs:validate", content=make.JOB_FILE)
        bad = await http.post("/v1/jobs:validate", content="name: x")
        assert (await http.get("/v1/jobs")).json()["total"] == 0
        return good, bad

    good, bad = over_http(scenario, facts={"rows": 5})
    assert (good.status_code, good.json()["valid"], good.json()["facts"]) == (200, True, {"rows": 5})
    assert bad.status_code == 422
    assert {error["path"] for error in bad.json()["errors"]} >= {"model", "data", "reward"}


def test_relative_paths_start_from_the_base_folder(over_http, make, tmp_path):
    file = make.JOB_FILE.replace("{reasoning_gym: chain_sum}", "{jsonl: rows.jsonl}")

    async def scenario(http, bus, gateway):
        reply = await post(http, file, params={"base": str(tmp_path)})
        assert reply.json()["spec"]["data"]["jsonl"] == str(tmp_path / "rows.jsonl")
        assert (await post(http, file, params={"base": "not/absolute"})).status_code == 422

    over_http(scenario)


def test_a_body_over_the_limit_is_refused_announced_or_not(over_http):
    async def pieces():
        for _ in range(20):
            yield b"#" * 100_000

    async def scenario(http, bus, gateway):
        announced = await post(http, b"#" * (1024 * 1024 + 1))
        streamed = await post(http, pieces())
        fits = await post(http, b"#" * 200_000)
        return announced, streamed, fits

    announced, streamed, fits = over_http(scenario)
    for reply in (announced, streamed):
        assert reply.status_code == 413
        assert "1048576 bytes" in reply.json()["error"]
    assert fits.status_code == 422


def test_the_same_key_and_file_give_the_same_job(over_http, make):
    async def scenario(http, bus, gateway):
        headers = {"Idempotency-Key": "once"}
        first = await post(http, make.JOB_FILE, headers=headers)
        second = await post(http, make.JOB_FILE, headers=headers)
        assert (first.status_code, second.status_code) == (201, 200)
        assert first.json() == second.json()
        other = await post(http, make.JOB_FILE + "seed: 1\n", headers=headers)
        assert other.status_code == 409
        assert first.json()["id"] in other.json()["error"]
        assert len(await bus.bucket("jobs").keys()) == 1
        assert [kind for _, kind, _ in gateway.told] == ["state"]

    over_http(scenario)


def test_many_submits_at_once_with_one_key_give_one_job(over_http, make):
    async def scenario(http, bus, gateway):
        headers = {"Idempotency-Key": "once"}
        replies = await asyncio.gather(*(post(http, make.JOB_FILE, headers=headers) for _ in range(20)))
        assert len({reply.json()["id"] for reply in replies}) == 1
        assert sorted(reply.status_code for reply in replies) == [200] * 19 + [201]
        assert len(await bus.bucket("jobs").keys()) == 1

    over_http(scenario)


def test_many_submits_at_once_without_a_key_give_as_many_jobs(over_http, make):
    async def scenario(http, bus, gateway):
        replies = await asyncio.gather(*(post(http, make.JOB_FILE) for _ in range(20)))
        assert len({reply.json()["id"] for reply in replies}) == 20

    over_http(scenario)


def test_a_submit_that_died_after_it_claimed_its_key_is_finished_by_the_next(over_http, make):
    from gateway.submit import Claim

    async def scenario(http, bus, gateway):
        wanted = m.digest(b"\n" + make.JOB_FILE.encode())
        claim = Claim(job="sums-0000aa", digest=wanted)
        await bus.bucket(topics.SUBMISSIONS.name).create(m.digest(b"once"), m.encode(claim))
        reply = await post(http, make.JOB_FILE, headers={"Idempotency-Key": "once"})
        assert (reply.status_code, reply.json()["id"]) == (201, "sums-0000aa")

    over_http(scenario)


def test_the_key_of_a_deleted_job_does_not_bring_it_back(over_http, make):
    async def scenario(http, bus, gateway):
        headers = {"Idempotency-Key": "once"}
        job = (await post(http, make.JOB_FILE, headers=headers)).json()["id"]
        await bus.bucket("jobs").delete(job)
        reply = await post(http, make.JOB_FILE, headers=headers)
        assert reply.status_code == 409
        assert "deleted" in reply.json()["error"]

    over_http(scenario)


def test_a_model_named_by_a_job_becomes_that_jobs_id(over_http, make):
    async def scenario(http, bus, gateway):
        await create_job(bus, make.job_record("warm-000001", state="completed", created_at=1.0))
        await create_job(bus, make.job_record("warm-000002", state="completed", created_at=2.0))
        await create_job(bus, make.job_record("cold-000003", state="running", created_at=3.0))
        await make.until(lambda: len(gateway.index) == 3, "three jobs")
        good = await post(http, make.JOB_FILE.replace("model: tiny", "model: job:warm"))
        assert good.json()["spec"]["model"] == "job:warm-000002"
        running = await post(http, make.JOB_FILE.replace("model: tiny", "model: job:cold"))
        absent = await post(http, make.JOB_FILE.replace("model: tiny", "model: job:none"))
        for reply in (running, absent):
            assert reply.status_code == 422
            assert reply.json()["errors"][0]["path"] == "model"

    over_http(scenario)


def test_a_job_moves_between_states_only_where_it_can(over_http, make):
    async def scenario(http, bus, gateway):
        await create_job(bus, make.job_record())
        at = f"/v1/jobs/{make.JOB}"
        steps = [
            ("pause", 202, "pausing"),
            ("pause", 202, "pausing"),
            ("resume", 202, "running"),
            ("resume", 202, "running"),
            ("cancel", 202, "cancelling"),
            ("cancel", 202, "cancelling"),
        ]
        for action, status, state in steps:
            reply = await http.post(f"{at}/{action}")
            assert (reply.status_code, reply.json()["state"]) == (status, state)
        refused = await http.post(f"{at}/pause")
        assert refused.status_code == 409
        assert refused.json() == {"error": f"{make.JOB} is cancelling: it cannot pause"}
        for _ in range(2):
            gone = await http.delete(at)
            assert (gone.status_code, gone.json()["state"]) == (202, "deleting")
        assert (await http.post(f"{at}/resume")).status_code == 409
        assert [body["state"] for _, _, body in gateway.told] == ["pausing", "running", "cancelling", "deleting"]

    over_http(scenario)


def test_a_failed_job_can_be_resumed_and_a_completed_one_cannot(over_http, make):
    async def scenario(http, bus, gateway):
        await create_job(bus, make.job_record("bad-000001", state="failed", reason="disk full"))
        await create_job(bus, make.job_record("good-000001", state="completed"))
        again = await http.post("/v1/jobs/bad-000001/resume")
        assert (again.json()["state"], again.json()["reason"]) == ("running", "")
        assert (await http.post("/v1/jobs/good-000001/resume")).status_code == 409

    over_http(scenario)


@pytest.mark.parametrize("reference", ["nothing", "..", "a b", "%00", "x" * 500, "UPPER"])
def test_an_unknown_job_is_404_in_one_line(over_http, reference):
    async def scenario(http, bus, gateway):
        return [
            await http.get(f"/v1/jobs/{reference}/status"),
            await http.post(f"/v1/jobs/{reference}/pause"),
            await http.get(f"/v1/jobs/{reference}/audit"),
        ]

    for reply in over_http(scenario):
        assert reply.status_code == 404
        assert "\n" not in reply.json()["error"]


def test_an_unknown_address_or_method_is_one_line(over_http):
    async def scenario(http, bus, gateway):
        return await http.get("/v2/jobs"), await http.put("/v1/jobs"), await http.get("/v1/jobs?limit=0")

    absent, wrong, bad = over_http(scenario)
    assert (absent.status_code, wrong.status_code, bad.status_code) == (404, 405, 422)
    assert "/docs" in absent.json()["error"]
    assert bad.json()["errors"][0]["path"] == "query.limit"


def test_ten_thousand_jobs_are_listed_page_by_page(over_http, make):
    async def scenario(http, bus, gateway):
        for number in range(10_000):
            await create_job(bus, make.job_record(f"sums-{number:06x}", created_at=float(number)))
        await make.until(lambda: len(gateway.index) == 10_000, "all jobs", 30)
        ids, cursor, largest = [], None, 0
        while True:
            params = {"limit": 500} | ({"cursor": cursor} if cursor else {})
            reply = await http.get("/v1/jobs", params=params)
            largest = max(largest, len(reply.content))
            page = reply.json()
            assert page["total"] == 10_000
            ids += [job["id"] for job in page["jobs"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert ids == [f"sums-{number:06x}" for number in reversed(range(10_000))]
        assert largest < 200_000
        assert (await http.get("/v1/jobs?limit=501")).status_code == 422

    over_http(scenario)


def test_before_the_broker_is_reached_it_is_alive_and_not_ready(make):
    import httpx

    from gateway.app import create_app
    from gateway.config import Settings
    from gateway.context import Gateway

    async def scenario():
        transport = httpx.ASGITransport(app=create_app(Gateway(Settings())))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            return [await http.get(path) for path in ("/healthz", "/readyz", "/v1/jobs", "/metrics")]

    alive, ready, jobs, metrics = asyncio.run(scenario())
    assert alive.status_code == 200
    assert ready.status_code == 503
    assert "nats://127.0.0.1:4222" in ready.json()["missing"][0]
    assert jobs.status_code == 503
    assert "nats://127.0.0.1:4222" in jobs.json()["error"]
    assert "slipstream_gateway_ready 0.0" in metrics.text


def test_readiness_and_metrics_tell_who_is_alive(over_http, make):
    async def scenario(http, bus, gateway):
        await create_job(bus, make.job_record())
        presence = m.Presence(
            service="rollout",
            id="rollout-1",
            host="h",
            pid=1,
            started_at=0.0,
            gauges={"slots_free": 3.0, "odd-name": 1.0, "leased.sums-1a2b3c": 2.0},
        )
        gateway.roster.hear(m.encode(presence))
        gateway.roster.hear(b"\xc1")
        await make.until(lambda: len(gateway.index) == 1, "one job")
        return await http.get("/readyz"), await http.get("/readyz?stack=true"), await http.get("/metrics")

    ready, stack, metrics = over_http(scenario)
    assert ready.status_code == 200
    assert ready.json()["services"]["rollout"] == 1
    assert "trainer" in ready.json()["missing_services"]
    assert stack.status_code == 503
    assert "a live trainer" in stack.json()["missing"]
    lines = metrics.text.splitlines()
    assert 'slipstream_jobs{state="running"} 1.0' in lines
    assert 'slipstream_processes{service="rollout"} 1.0' in lines
    assert 'slipstream_slots_free{id="rollout-1",job="",service="rollout"} 3.0' in lines
    assert 'slipstream_leased{id="rollout-1",job="sums-1a2b3c",service="rollout"} 2.0' in lines
    assert 'slipstream_odd_name{id="rollout-1",job="",service="rollout"} 1.0' in lines


def test_every_address_is_described(over_http):
    async def scenario(http, bus, gateway):
        return (await http.get("/openapi.json")).json(), await http.get("/docs")

    schema, docs = over_http(scenario)
    assert docs.status_code == 200
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            assert operation["tags"], (method, path)
    assert "requestBody" in schema["paths"]["/v1/jobs"]["post"]
    assert "ErrorView" in schema["components"]["schemas"]
