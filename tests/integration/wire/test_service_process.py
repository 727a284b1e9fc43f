"""The life of a real service process: it waits for the broker, survives its restart, drains, and ends as it should."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.wire.bus.nats import NatsBus
from shared.wire.messages import Event, Presence, decode
from shared.wire.topics import EVENTS

ROOT = Path(__file__).parents[3]
HEAD = """
import asyncio
from shared.wire.service import CommonSettings, Service, run

class Settings(CommonSettings, env_prefix="SLIPSTREAM_SAMPLE_"):
    slots: int = 4
"""
TAIL = """
raise SystemExit(run(main, "sample", Settings()))
"""
IDLE = """
async def main(service):
    await service.stopping.wait()
"""


@contextmanager
def process(tmp_path, body, url, **environment):
    """The program as a child, its standard error in a file."""
    log = tmp_path / "log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-c", HEAD + body + TAIL],
            cwd=ROOT,
            stderr=out,
            env={**os.environ, "SLIPSTREAM_NATS_URL": url, **environment},
        )
    try:
        yield child, log
    finally:
        if child.poll() is None:
            child.kill()
        child.wait(10)


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_service_ends_with_status_zero(tmp_path, nats_url, number):
    with process(tmp_path, IDLE, nats_url) as (child, log):
        until(lambda: "ready as sample-" in log.read_text())
        began = time.monotonic()
        child.send_signal(number)
        assert child.wait(10) == 0
        assert time.monotonic() - began < 3
        for line in log.read_text().splitlines():
            assert re.match(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} INFO sample ", line), line


def test_without_a_broker_it_waits_says_so_and_stops_at_once_when_told(tmp_path):
    with process(tmp_path, IDLE, f"nats://127.0.0.1:{free_port()}") as (child, log):
        until(lambda: "waiting for NATS at nats://127.0.0.1" in log.read_text())
        assert "`slipstream up` starts it" in log.read_text()
        began = time.monotonic()
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0
        assert time.monotonic() - began < 2


def test_it_starts_when_the_broker_comes(tmp_path, nats_server):
    server = nats_server()
    server.kill()
    with process(tmp_path, IDLE, server.url) as (child, log):
        until(lambda: "waiting for NATS" in log.read_text())
        server.restart()
        until(lambda: "ready as" in log.read_text())
        server.kill()
        until(lambda: "lost NATS" in log.read_text())
        server.restart()
        until(lambda: "back on NATS" in log.read_text())
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0


def test_an_error_nobody_handled_is_one_line_and_status_one(tmp_path, nats_url):
    body = """
async def main(service):
    async def broken():
        raise ValueError("the reward\\nfell over")
    service.tasks.create_task(broken())
    await service.stopping.wait()
"""
    with process(tmp_path, body, nats_url) as (child, log):
        assert child.wait(20) == 1
        errors = [line for line in log.read_text().splitlines() if "ERROR" in line]
        assert len(errors) == 1 and "ValueError: the reward fell over" in errors[0]
        assert "Traceback" not in log.read_text()
    with process(tmp_path, body, nats_url, SLIPSTREAM_LOG_LEVEL="debug") as (child, log):
        assert child.wait(20) == 1
        assert "Traceback" in log.read_text()


def test_a_loop_that_ends_unasked_is_an_error(tmp_path, nats_url):
    body = """
async def main(service):
    service.loop(asyncio.sleep(0.01), "grade")
    await service.stopping.wait()
"""
    with process(tmp_path, body, nats_url) as (child, log):
        assert child.wait(20) == 1
        assert "grade ended unasked" in log.read_text()


def test_a_main_that_does_not_finish_is_cancelled_after_its_time(tmp_path, nats_url):
    body = """
async def main(service):
    await service.stopping.wait()
    await asyncio.Event().wait()
"""
    with process(tmp_path, body, nats_url, SLIPSTREAM_DRAIN_SECONDS="0.5") as (child, log):
        until(lambda: "ready as" in log.read_text())
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0
        assert "did not finish in 0.5 s" in log.read_text()


def test_a_bad_setting_is_one_line_and_no_trace(tmp_path, nats_url):
    with process(tmp_path, IDLE, nats_url, SLIPSTREAM_SAMPLE_SLOTS="many") as (child, log):
        assert child.wait(20) == 1
        assert log.read_text().count("\n") == 1 and "SLIPSTREAM_SAMPLE_SLOTS" in log.read_text()


async def test_it_says_that_it_lives_and_tells_events(tmp_path, nats_server):
    server = nats_server()
    bus = await NatsBus.connect(server.url, name="test")
    await bus.declare([EVENTS])
    heard = []

    async def hear(stored):
        heard.append(decode(Presence, stored.data))

    await bus.listen("presence.sample.*", hear)
    body = """
async def main(service):
    service.gauges["slots"] = 3.0
    await service.event("j", "notice", {"text": "hello"}, step=2)
    await service.event("j", "notice", {"text": object()})
    await service.stopping.wait()
"""
    with process(tmp_path, body, server.url) as (_, _):
        async for stored in bus.follow("events"):
            event = decode(Event, stored.data)
            break
        while not any(presence.gauges for presence in heard):
            await bus.last_sequence("events")
    assert (event.job, event.event, event.step, event.body) == ("j", "notice", 2, {"text": "hello"})
    assert heard[0].service == "sample" and heard[0].id.startswith("sample-")
    await bus.close()
