"""A whole local stack for a test: real nats-server, real services, real HTTP, small models."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gateway.client import Client

PROJECT = Path(__file__).resolve().parents[3]


def wait_for(condition, what, seconds=90.0):
    """The condition's first true value; an assertion with `what` when there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"no {what} within {seconds} s")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Stack:
    """`slipstream up` in a folder of its own."""

    def __init__(self, home, environment=None):
        self.home = home
        self.port = free_port()
        self.environment = {**os.environ, "SLIPSTREAM_THREADS": "1", **(environment or {})}
        self.process = None
        self.client = Client(f"http://127.0.0.1:{self.port}")

    @property
    def data(self):
        return self.home / "volumes" / "data"

    def command(self, *words):
        return [sys.executable, "-m", "deploy.local", *words, "--home", str(self.home)]

    def up(self, *words):
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "up.log").open("wb") as log:
            self.process = subprocess.Popen(
                self.command("up", "--quiet", "--port", str(self.port), *words),
                cwd=PROJECT,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        wait_for(self.said_up, "start of the stack", 120)

    def said_up(self):
        text = (self.home / "up.log").read_text()
        assert self.process.poll() is None, text
        return "up at http" in text

    def ps(self):
        done = subprocess.run(self.command("ps", "--json"), cwd=PROJECT, capture_output=True, text=True, timeout=30)
        return json.loads(done.stdout) if done.returncode == 0 else []

    def scale(self, **services):
        words = [f"{name.replace('_', '-')}={n}" for name, n in services.items()]
        done = subprocess.run(self.command("scale", *words), cwd=PROJECT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    def processes(self, service):
        """The service's processes with their children, as psutil sees them."""
        found = []
        for row in self.ps():
            if row["service"] == service and row["pid"]:
                try:
                    parent = psutil.Process(row["pid"])
                    found += [parent, *parent.children(recursive=True)]
                except psutil.NoSuchProcess:
                    continue
        return found

    def kill(self, service):
        """SIGKILL to the service's main processes; their children die with them."""
        rows = [row for row in self.ps() if row["service"] == service and row["pid"]]
        assert rows, f"no process of {service} to kill"
        for row in rows:
            os.kill(row["pid"], signal.SIGKILL)

    def logs(self):
        return "\n".join(
            f"--- {file.name}\n" + "\n".join(file.read_text(errors="replace").splitlines()[-25:])
            for file in sorted((self.home / "logs").glob("*.log"))
        )

    def finish(self, job, seconds=120):
        """The job once it has ended; its state must be `completed` and its ledger in balance."""
        try:
            ended = self.client.wait(job, timeout_seconds=seconds)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{json.dumps(self.client.status(job), indent=1)}\n{self.logs()}") from error
        assert ended["state"] == "completed", f"{ended['state']}: {ended['reason']}\n{self.logs()}"
        audit = self.client.audit(job)
        assert audit["balanced"], audit
        return audit

    def stop(self, number=signal.SIGINT):
        self.process.send_signal(number)
        assert self.process.wait(15) in (0, 130)

    def end(self):
        self.client.close()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """One stack for all tests of a module that do not break it for good."""
    made = Stack(tmp_path_factory.mktemp("stack") / "home")
    try:
        made.up()
        yield made
    finally:
        made.end()


@pytest.fixture
def own_stack(tmp_path):
    """A stack for one test, not yet up: `own_stack.up(...)`."""
    made = Stack(tmp_path / "home")
    try:
        yield made
    finally:
        made.end()


def job_file(**changes):
    """A short job of the 0.7M model as a dict; `section__field=value` changes one field."""
    spec = {
        "name": "short",
        "model": "tiny",
        "data": {
            "reasoning_gym": "spell_backward",
            "settings": {"min_word_len": 3, "max_word_len": 4},
            "size": 200,
            "template": "raw",
        },
        "reward": [{"name": "right", "kind": "exact"}, {"name": "low", "kind": "regex", "pattern": "[a-m]"}],
        "algorithm": {"steps": 4, "group_size": 4, "groups_per_step": 2, "learning_rate": 1e-4, "staleness": 1},
        "sampling": {"max_tokens": 8},
        "checkpoint": {"every": 2},
        "engine": {"dtype": "float32"},
    }
    for path, value in changes.items():
        section, _, field = path.partition("__")
        if field:
            spec.setdefault(section, {})[field] = value
        else:
            spec[section] = value
    return spec


@pytest.fixture
def submit(stack):
    """Submits a short job to the module's stack; the job's id."""
    return lambda **changes: stack.client.submit(json.dumps(job_file(**changes)))["id"]


@pytest.fixture
def until():
    """`until(condition, what, seconds)`: waits for a condition with a deadline."""
    return wait_for


@pytest.fixture
def make_job():
    """`make_job(**changes)`: the text of a job file."""
    return lambda **changes: json.dumps(job_file(**changes))
