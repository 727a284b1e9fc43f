"""The compose file as the local stack reads it."""

from pathlib import Path

import pytest
import yaml

from deploy.local import places, topology

PROJECT = Path(__file__).resolve().parents[3]


def parse(text, variables=None, profiles=frozenset()):
    return topology.parse(yaml.safe_load(text), variables or {}, profiles)


def test_the_projects_own_file_lists_the_broker_the_gateway_and_the_six_services():
    stack = topology.parse(yaml.safe_load((PROJECT / "docker-compose.yml").read_text()), {})
    assert sorted(stack.services) == [
        "gateway", "nats", "replay-buffer", "reward", "rollout", "scheduler", "trainer", "weight-broadcast",
    ]  # fmt: skip
    assert stack.start_order()[0] == "nats"
    assert stack.services["gateway"].environment["SLIPSTREAM_NATS_URL"] == "nats://nats:4222"


def test_every_published_port_is_on_the_loopback_address():
    stack = topology.parse(yaml.safe_load((PROJECT / "docker-compose.yml").read_text()), {})
    assert [host for _, host, _ in places.published(stack)] == ["127.0.0.1"]


def test_variables_are_filled_in_with_their_defaults():
    assert topology.interpolate("a${X:-1}b${Y:-2}c$$d${Z}", {"Y": "7"}) == "a1b7c$d"


def test_a_key_that_the_local_stack_would_ignore_silently_is_an_error():
    with pytest.raises(topology.TopologyError, match=r"services\.a\.secrets is not understood"):
        parse("services: {a: {command: [x], secrets: [y]}}")


def test_a_circle_of_dependencies_is_named():
    stack = parse("services: {a: {command: [x], depends_on: [b]}, b: {command: [x], depends_on: [a]}}")
    with pytest.raises(topology.TopologyError, match="a -> b -> a"):
        stack.start_order()


def test_a_service_of_a_profile_is_left_out_until_the_profile_is_asked_for():
    text = "services: {a: {command: [x]}, b: {command: [x], profiles: [gpu]}}"
    assert sorted(parse(text).services) == ["a"]
    assert sorted(parse(text, profiles=frozenset({"gpu"})).services) == ["a", "b"]


@pytest.mark.parametrize(("text", "value"), [("10s", 10.0), ("1m30s", 90.0), ("500ms", 0.5), (3, 3.0)])
def test_durations_are_read_as_compose_reads_them(text, value):
    assert topology.seconds(text, "x") == value


def test_a_wrong_duration_says_where():
    with pytest.raises(topology.TopologyError, match=r"services\.a\.stop_grace_period: '10 parsecs'"):
        parse("services: {a: {command: [x], stop_grace_period: 10 parsecs}}")


def test_a_service_with_a_fixed_port_is_not_scaled():
    stack = parse("services: {a: {command: [x], ports: ['127.0.0.1:80:80']}, b: {command: [x]}}")
    with pytest.raises(topology.TopologyError, match="publishes a fixed port"):
        topology.with_scale(stack, {"a": 2})
    with pytest.raises(topology.TopologyError, match="there is no service 'c'"):
        topology.with_scale(stack, {"c": 2})
    assert topology.with_scale(stack, {"b": 3}).services["b"].scale == 3


def test_addresses_and_folders_of_containers_become_this_machines():
    stack = parse(
        "services: {nats: {command: [n], environment: {L: '0.0.0.0:4222'}},"
        " a: {command: [run, --in, /data/x], environment: {U: 'nats://nats:4222', D: /data, P: /database},"
        " volumes: ['data:/data']}}"
    )
    here = places.Places(Path("/p"), Path("/v"), {("nats", 1, 4222): 5555})
    a, nats = stack.services["a"], stack.services["nats"]
    assert here.environment(a, 1) == {"U": "nats://127.0.0.1:5555", "D": "/v/data", "P": "/database"}
    assert here.command(a, 1) == ["run", "--in", "/v/data/x"]
    assert here.environment(nats, 1) == {"L": "127.0.0.1:5555"}
    assert places.listening_ports(nats) == [4222]
