"""A real gateway process on a real nats-server, and a thread that plays the services it asks."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gateway.client import Client
from shared.wire import messages as m
from shared.wire import topics
from shared.wire.bus import connect
from shared.wire.jobs import create_job

PROJECT = Path(__file__).resolve().parents[3]
JOB_FILE = """
name: sums
model: tiny
data: {reasoning_gym: chain_sum}
reward: [{name: right, kind: exact}]
algorithm: {steps: 3}
"""


def wait_for(condition, what, seconds=20.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"no {what} within {seconds} s")


class GatewayProcess:
    """`python -m gateway` on a free port."""

    def __init__(self, folder, nats_url, listen="127.0.0.1:0", **settings):
        self.log = folder / f"gateway-{len(list(folder.glob('gateway-*')))}.log"
        self.data = folder / "data"
        environment = {
            **os.environ,
            "SLIPSTREAM_NATS_URL": nats_url,
            "SLIPSTREAM_DATA_DIR": str(self.data),
            "SLIPSTREAM_GATEWAY_LISTEN": listen,
            **settings,
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway"], env=environment, cwd=PROJECT, stdout=log, stderr=log
            )
        self.url = wait_for(self._address, "listening gateway")
        self.client = Client(self.url, patience_seconds=20.0)

    def _address(self):
        text = self.log.read_text()
        assert self.process.poll() is None, text
        found = re.search(r"listening on (http://\S+)", text)
        return found and found[1]

    @property
    def listen(self):
        return self.url.removeprefix("http://")

    def until_ready(self):
        import httpx

        wait_for(lambda: httpx.get(f"{self.url}/readyz").status_code == 200, "readiness")
        return self

    def stop(self, number=signal.SIGTERM):
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(20)


class Services:
    """A thread with a connection of its own: answers the checks, and does to the streams what a test says."""

    def __init__(self, nats_url):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.problems = []
        self.bus = self.do(connect(nats_url, name="services"))

    def do(self, coroutine, seconds=30):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)

    async def _answer(self, _):
        return m.encode(m.CheckReply(problems=self.problems, facts={"rows": 7}))

    def serve(self, *names):
        for name in names or ("data", "reward"):
            self.do(self.bus.serve(f"check.{name}", self._answer, queue=name))
        return self

    def create(self, id, state="running", **changes):
        spec = {"name": "sums", "model": "tiny", "algorithm": {"kind": "grpo", "steps": 3, "staleness": 1}}
        now = time.time()
        fields = {"name": id.rpartition("-")[0], "spec": spec, "digest": "d", "created_at": now, "updated_at": now}
        record = m.JobRecord(id=id, state=state, **{**fields, **changes})
        self.do(create_job(self.bus, record))

    def tell(self, job, kind, step=-1, **body):
        event = m.Event(job=job, event=kind, at=time.time(), step=step, body=body)
        return self.do(self.bus.publish(topics.event_subject(job, kind), m.encode(event))).sequence

    def close(self):
        self.do(self.bus.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


@pytest.fixture
def start_gateway(tmp_path):
    """`start_gateway(nats_url, **settings)`; every process ends with the test."""
    started = []

    def start(nats_url, **settings):
        started.append(GatewayProcess(tmp_path, nats_url, **settings))
        return started[-1]

    yield start
    for gateway in started:
        gateway.stop(signal.SIGKILL)


@pytest.fixture
def services(nats_url):
    made = Services(nats_url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def gateway(nats_url, tmp_path_factory):
    """One gateway for all tests of a module that do not stop it."""
    made = GatewayProcess(tmp_path_factory.mktemp("gateway"), nats_url).until_ready()
    yield made
    assert made.stop() == 0, made.log.read_text()


@pytest.fixture
def command(gateway):
    """`command("jobs", "--json")`: the command line against the module's gateway."""

    def run(*words, url=gateway.url, stdin=None, seconds=60):
        environment = {**os.environ, "SLIPSTREAM_URL": url}
        return subprocess.run(
            [sys.executable, "-m", "slipstream", *words],
            env=environment,
            cwd=PROJECT,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    return run


@pytest.fixture
def until():
    return wait_for


@pytest.fixture
def job_file(tmp_path):
    """A good job file."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB_FILE)
    return path
