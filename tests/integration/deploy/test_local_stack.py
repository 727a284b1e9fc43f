"""The local stack with real processes: small web servers stand where the services would."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
COMPOSE = """
services:
  web:
    command: ["python", "-m", "http.server", "--bind", "127.0.0.1", "--directory", "/site", "{port}"]
    environment: {{LISTEN: "0.0.0.0:80"}}
    ports: ["127.0.0.1:{port}:80"]
    volumes: ["site:/site"]
    healthcheck: {{test: ["CMD", "wget", "http://127.0.0.1:80/"], interval: 100ms}}
    restart: unless-stopped
  worker:
    command: ["python", "-c", "import time; print('working', flush=True); time.sleep(600)"]
    depends_on: {{web: {{condition: service_healthy}}}}
    restart: {restart}
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(condition, what, seconds=20.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"no {what} within {seconds} s")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Stack:
    def __init__(self, tmp_path, restart="unless-stopped"):
        self.port = free_port()
        self.home = tmp_path / "home"
        self.file = tmp_path / "compose.yml"
        self.file.write_text(COMPOSE.format(port=self.port, restart=restart))
        self.process = None

    def command(self, *words):
        return [sys.executable, "-m", "deploy.local", *words, "--home", str(self.home)]

    def run(self, *words):
        return subprocess.run(self.command(*words), cwd=PROJECT, capture_output=True, text=True, timeout=60)

    def up(self):
        self.process = subprocess.Popen(
            self.command("up", "--file", str(self.file)), cwd=PROJECT, stdout=subprocess.PIPE, text=True
        )
        wait_for(lambda: self.is_up(), "stack")

    def is_up(self):
        assert self.process.poll() is None, self.process.stdout.read()
        rows = self.ps()
        return len(rows) >= 2 and all(row["state"] in ("healthy", "running") for row in rows)

    def ps(self):
        done = self.run("ps", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else []

    def end(self):
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()
            self.process.stdout.close()


@pytest.fixture
def stack(tmp_path):
    made = Stack(tmp_path)
    yield made
    made.end()


def test_up_starts_in_order_and_ctrl_c_leaves_no_process(stack):
    stack.up()
    assert urllib.request.urlopen(f"http://127.0.0.1:{stack.port}/").status == 200
    pids = [row["pid"] for row in stack.ps()]
    stack.process.send_signal(signal.SIGINT)
    assert stack.process.wait(10) == 0
    assert not [pid for pid in pids if alive(pid)]


def test_down_ends_what_up_started_from_another_terminal(stack):
    stack.up()
    pids = [row["pid"] for row in stack.ps()]
    assert stack.run("down").returncode == 0
    assert stack.process.wait(10) == 0
    assert not [pid for pid in pids if alive(pid)]
    assert stack.run("ps").returncode == 2


def test_nothing_survives_the_death_of_the_supervisor(stack):
    stack.up()
    pids = [row["pid"] for row in stack.ps()]
    stack.process.kill()
    wait_for(lambda: not [pid for pid in pids if alive(pid)], "end of the children")


def test_a_crashed_service_starts_again_and_ps_counts_it(stack):
    stack.up()
    (before,) = [row for row in stack.ps() if row["service"] == "worker"]
    os.kill(before["pid"], signal.SIGKILL)
    after = wait_for(
        lambda: next(
            (r for r in stack.ps() if r["service"] == "worker" and r["pid"] not in (None, before["pid"])), None
        ),
        "second worker",
    )
    assert after["restarts"] == 1


def test_scale_adds_and_removes_while_the_rest_runs(stack):
    stack.up()
    assert stack.run("scale", "worker=3").returncode == 0
    rows = stack.ps()
    assert [r["service"] for r in rows] == ["web", "worker", "worker", "worker"]
    gone = [r["pid"] for r in rows if r["service"] == "worker" and r["replica"] > 1]
    assert stack.run("scale", "worker=1").returncode == 0
    assert not [pid for pid in gone if alive(pid)]
    refused = stack.run("scale", "web=2")
    assert refused.returncode == 2
    assert "publishes a fixed port" in refused.stderr


def test_a_second_up_on_the_same_port_says_so_and_exits_2(stack, tmp_path):
    stack.up()
    other = stack.command("up", "--file", str(stack.file))
    other[other.index("--home") + 1] = str(tmp_path / "other")
    done = subprocess.run(other, cwd=PROJECT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert f"port {stack.port} on 127.0.0.1, which web publishes, is taken" in done.stderr
    same = subprocess.run(
        stack.command("up", "--file", str(stack.file)), cwd=PROJECT, capture_output=True, text=True, timeout=30
    )
    assert same.returncode == 2
    assert "already running" in same.stderr


def test_logs_show_what_a_service_wrote_and_name_what_there_is(stack):
    stack.up()
    wait_for(lambda: "working" in stack.run("logs", "worker").stdout, "line of the worker")
    wrong = stack.run("logs", "wörker")
    assert wrong.returncode == 2
    assert "there are logs of web, worker" in wrong.stderr


def test_up_names_the_service_that_does_not_come_up_with_its_last_words(tmp_path):
    stack = Stack(tmp_path)
    text = stack.file.read_text().replace("restart: unless-stopped", "restart: 'no'")
    stack.file.write_text(text.replace('"-m", "http.server"', '"-c", "raise SystemExit(\'no luck today\')"'))
    done = stack.run("up", "--file", str(stack.file))
    assert done.returncode == 1
    assert "web-1 did not come up" in done.stderr
    assert "no luck today" in done.stderr


def test_detached_up_returns_when_it_is_up_and_down_ends_it(tmp_path):
    stack = Stack(tmp_path)
    done = stack.run("up", "-d", "--file", str(stack.file))
    try:
        assert done.returncode == 0, done.stderr
        assert f"up at http://127.0.0.1:{stack.port}" in done.stdout
        assert len(stack.ps()) == 2
    finally:
        pids = [row["pid"] for row in stack.ps()]
        assert stack.run("down").returncode == 0
    assert not [pid for pid in pids if alive(pid)]
