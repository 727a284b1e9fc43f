"""The gateway as a process: starting without a broker, ports, signals, a broker that goes away."""

import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest

from gateway.client_errors import Unavailable


def test_with_the_broker_down_at_start_it_is_alive_says_what_is_missing_and_recovers(start_gateway, nats_server, until):
    server = nats_server()
    server.stop()
    gateway = start_gateway(server.url)
    assert httpx.get(f"{gateway.url}/healthz").status_code == 200
    ready = httpx.get(f"{gateway.url}/readyz")
    assert ready.status_code == 503
    assert server.url in ready.json()["missing"][0]
    with pytest.raises(Unavailable, match="not reached yet"):
        gateway.client.job("any")
    server.restart()
    gateway.until_ready()
    assert list(gateway.client.jobs()) == []


def test_told_to_stop_while_the_broker_is_down_it_stops(start_gateway, nats_server):
    server = nats_server()
    server.stop()
    assert start_gateway(server.url).stop() == 0


def test_a_broker_that_goes_away_in_the_middle_costs_nothing_but_time(start_gateway, nats_server, until):
    server = nats_server()
    gateway = start_gateway(server.url).until_ready()
    server.kill()
    assert httpx.get(f"{gateway.url}/healthz").status_code == 200
    server.restart()

    def answers():
        return httpx.get(f"{gateway.url}/v1/jobs/nothing", timeout=30).status_code == 404

    until(answers, "answer after the broker is back", 30)
    assert gateway.stop() == 0


def test_a_taken_port_is_one_line_and_status_2(nats_url, start_gateway):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        environment = {"SLIPSTREAM_NATS_URL": nats_url, "SLIPSTREAM_GATEWAY_LISTEN": listen, "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            [sys.executable, "-m", "gateway"], env=environment, capture_output=True, text=True, timeout=30
        )
    assert done.returncode == 2
    assert done.stderr == f"slipstream gateway: cannot listen on {listen}: Address already in use\n"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("LISTEN", "8400", "host:port"), ("LISTN", "x", "SLIPSTREAM_GATEWAY_LISTEN"), ("MAX_BODY_BYTES", "-1", "1024")],
)
def test_a_wrong_setting_is_one_line(name, value, words):
    environment = {f"SLIPSTREAM_GATEWAY_{name}": value, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-m", "gateway"], env=environment, capture_output=True, text=True, timeout=30
    )
    assert done.returncode != 0
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_at_once_though_someone_watches(start_gateway, services, nats_url, number, until):
    gateway = start_gateway(nats_url).until_ready()
    services.create(f"watched-{number:06x}")
    seen = []
    services.tell(f"watched-{number:06x}", "notice", text="hello")

    def watch():
        with httpx.stream("GET", f"{gateway.url}/v1/jobs/watched-{number:06x}/events", timeout=30) as response:
            seen.extend(response.iter_lines())

    watcher = threading.Thread(target=watch)
    watcher.start()
    until(lambda: any("hello" in line for line in seen), "event at the watcher")
    assert gateway.stop(number) == 0
    watcher.join(10)
    assert not watcher.is_alive()
    assert "Traceback" not in gateway.log.read_text()
