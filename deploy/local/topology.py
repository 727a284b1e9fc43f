"""The compose file as data: the part of its language that the local stack honours, and an error for the rest. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Keys that only mean something to containers: a plain process has no image to build and no capability to drop.
CONTAINER_ONLY = {
    "build", "image", "user", "read_only", "tmpfs", "cap_drop", "cap_add", "security_opt", "mem_limit", "shm_size",
    "networks", "init", "logging", "labels", "container_name", "hostname", "ulimits", "pids_limit", "expose",
}  # fmt: skip
HONOURED = {
    "command", "entrypoint", "environment", "depends_on", "healthcheck", "restart", "scale", "deploy", "ports",
    "volumes", "stop_grace_period", "profiles", "x-ready",
}  # fmt: skip


class TopologyError(ValueError):
    """The compose file says something that the local stack cannot honour; one line with the place."""


@dataclass(frozen=True)
class Health:
    command: tuple[str, ...]
    interval_seconds: float = 2.0
    timeout_seconds: float = 5.0
    retries: int = 30
    start_period_seconds: float = 0.0


@dataclass(frozen=True)
class PublishedPort:
    host: str
    host_port: int
    container_port: int


@dataclass(frozen=True)
class Mount:
    """`source` is a named volume, or a path relative to the compose file when it starts with `.` or `/`."""

    source: str
    target: str

    @property
    def is_volume(self) -> bool:
        return not self.source.startswith((".", "/"))


@dataclass(frozen=True)
class ServiceSpec:
    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    depends_on: Mapping[str, str] = field(default_factory=dict)  # service -> service_started | service_healthy
    health: Health | None = None
    restart: str = "no"
    scale: int = 1
    ports: tuple[PublishedPort, ...] = ()
    mounts: tuple[Mount, ...] = ()
    stop_grace_seconds: float = 10.0
    ready_url: str = ""  # x-ready: answers 200 once the whole stack can work


@dataclass(frozen=True)
class Topology:
    name: str
    services: Mapping[str, ServiceSpec]

    def start_order(self) -> list[str]:
        """Service names, each after what it depends on. Raises `TopologyError` for a circle."""
        order: list[str] = []
        visiting: list[str] = []

        def visit(name: str) -> None:
            if name in order:
                return
            if name in visiting:
                raise TopologyError(f"depends_on goes in a circle: {' -> '.join([*visiting, name])}")
            visiting.append(name)
            for other in sorted(self.services[name].depends_on):
                if other in self.services:
                    visit(other)
            visiting.pop()
            order.append(name)

        for name in sorted(self.services):
            visit(name)
        return order


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """`${NAME}`, `${NAME:-default}`, `$$`, as Docker Compose reads them."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name, default = match["name"], match["default"]
        return variables.get(name) or (default if default is not None else "")

    return re.sub(r"\$\$|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}", value, text)


def _interpolated(node: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(node, str):
        return interpolate(node, variables)
    if isinstance(node, dict):
        return {key: _interpolated(value, variables) for key, value in node.items()}
    if isinstance(node, list):
        return [_interpolated(value, variables) for value in node]
    return node


def seconds(text: Any, where: str) -> float:
    """`1m30s`, `10s`, `500ms` or a plain number, in seconds."""
    if isinstance(text, int | float):
        return float(text)
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    parts = re.findall(r"([0-9.]+)(ms|s|m|h)", str(text))
    if not parts or "".join(number + unit for number, unit in parts) != str(text):
        raise TopologyError(f"{where}: {text!r} is not a duration like 10s")
    return sum(float(number) * units[unit] for number, unit in parts)


def _words(value: Any) -> tuple[str, ...]:
    return tuple(shlex.split(value)) if isinstance(value, str) else tuple(str(word) for word in value or ())


def _environment(value: Any) -> dict[str, str]:
    if isinstance(value, list):
        value = dict(item.split("=", 1) for item in value)
    return {str(k): "" if v is None else str(v) for k, v in (value or {}).items()}


def _depends_on(value: Any) -> dict[str, str]:
    if isinstance(value, list):
        return dict.fromkeys(value, "service_started")
    return {name: (how or {}).get("condition", "service_started") for name, how in (value or {}).items()}


def _health(value: Any, where: str) -> Health | None:
    if not value or value.get("disable"):
        return None
    test = value["test"]
    if isinstance(test, str):
        command: tuple[str, ...] = ("sh", "-c", test)
    elif test[0] == "CMD":
        command = tuple(test[1:])
    elif test[0] == "CMD-SHELL":
        command = ("sh", "-c", test[1])
    else:
        raise TopologyError(f"{where}.test: starts with {test[0]!r}, not CMD or CMD-SHELL")
    return Health(
        command,
        interval_seconds=seconds(value.get("interval", "2s"), f"{where}.interval"),
        timeout_seconds=seconds(value.get("timeout", "5s"), f"{where}.timeout"),
        retries=int(value.get("retries", 30)),
        start_period_seconds=seconds(value.get("start_period", "0s"), f"{where}.start_period"),
    )


def _port(value: Any, where: str) -> PublishedPort:
    match = re.fullmatch(r"(?:(?P<host>[0-9.]+):)?(?P<published>[0-9]+):(?P<target>[0-9]+)", str(value))
    if match is None:
        raise TopologyError(f"{where}: {value!r} is not HOST:PORT:PORT")
    return PublishedPort(match["host"] or "127.0.0.1", int(match["published"]), int(match["target"]))


def _mount(value: Any, where: str) -> Mount:
    parts = str(value).split(":")
    if len(parts) not in (2, 3):
        raise TopologyError(f"{where}: {value!r} is not SOURCE:TARGET[:ro]")
    return Mount(parts[0], parts[1])


def parse(document: Any, variables: Mapping[str, str], profiles: frozenset[str] = frozenset()) -> Topology:
    """The topology in a parsed compose file.

    `variables` fill `${...}`; services whose `profiles` are not asked for are left out. Raises `TopologyError`.
    """
    if not isinstance(document, dict) or not isinstance(document.get("services"), dict):
        raise TopologyError("the compose file has no `services`")
    services = {}
    for name, raw in document["services"].items():
        body = _interpolated(raw, variables)
        where = f"services.{name}"
        unknown = set(body) - HONOURED - CONTAINER_ONLY
        if unknown:
            raise TopologyError(f"{where}.{sorted(unknown)[0]} is not understood by the local stack")
        if body.get("profiles") and not profiles & set(body["profiles"]):
            continue
        replicas = (body.get("deploy") or {}).get("replicas", body.get("scale", 1))
        services[name] = ServiceSpec(
            name=name,
            command=_words(body.get("entrypoint")) + _words(body.get("command")),
            environment=_environment(body.get("environment")),
            depends_on=_depends_on(body.get("depends_on")),
            health=_health(body.get("healthcheck"), f"{where}.healthcheck"),
            restart=str(body.get("restart", "no")),
            scale=int(replicas),
            ports=tuple(_port(p, f"{where}.ports") for p in body.get("ports", ())),
            mounts=tuple(_mount(v, f"{where}.volumes") for v in body.get("volumes", ())),
            stop_grace_seconds=seconds(body.get("stop_grace_period", "10s"), f"{where}.stop_grace_period"),
            ready_url=str(body.get("x-ready", "")),
        )
        if not services[name].command:
            raise TopologyError(f"{where}.command is empty: the local stack has no image to take one from")
    return Topology(str(document.get("name", "slipstream")), services)


def with_scale(topology: Topology, scale: Mapping[str, int]) -> Topology:
    """The topology with other numbers of replicas. Raises `TopologyError` for a name it does not have."""
    services = dict(topology.services)
    for name, replicas in scale.items():
        if name not in services:
            raise TopologyError(f"there is no service {name!r} to scale; there are {', '.join(sorted(services))}")
        if replicas > 1 and services[name].ports:
            raise TopologyError(f"{name} publishes a fixed port, so it cannot be scaled to {replicas}")
        spec = services[name]
        services[name] = ServiceSpec(**{**spec.__dict__, "scale": replicas})
    return Topology(topology.name, services)
