"""Container addresses and folders, as this machine has them. Pure: ports and folders are given.

`nats:4222` in any value becomes the address where this machine's nats listens; `0.0.0.0:8400` in a service's own
values becomes the loopback address that was set aside for it; `/data` becomes the folder that stands for the volume.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.local.topology import ServiceSpec, Topology

LISTEN = re.compile(r"(?<![0-9.])0\.0\.0\.0:([0-9]+)(?![0-9])")


@dataclass(frozen=True)
class Places:
    """`ports`: (service, replica, container port) -> local port. `project`: the compose file's folder."""

    project: Path
    volumes: Path
    ports: Mapping[tuple[str, int, int], int]

    def text(self, value: str, service: ServiceSpec, replica: int) -> str:
        """`value` with every container address and folder replaced."""

        def listen(match: re.Match[str]) -> str:
            return f"127.0.0.1:{self.ports[service.name, replica, int(match[1])]}"

        value = LISTEN.sub(listen, value)
        for (name, number, container_port), port in sorted(self.ports.items(), reverse=True):
            if number == 1:
                value = re.sub(rf"(?<![\w.-]){re.escape(name)}:{container_port}(?!\d)", f"127.0.0.1:{port}", value)
            if (name, number) == (service.name, replica):
                value = re.sub(
                    rf"(?<![\d.])(127\.0\.0\.1|localhost):{container_port}(?!\d)", f"127.0.0.1:{port}", value
                )
        for mount in service.mounts:
            source = self.volumes / mount.source if mount.is_volume else self.project / mount.source
            pattern = rf"(?<![\w./-]){re.escape(mount.target)}(?=/|$|[\s,:;\"'])"
            value = re.sub(pattern, str(source).replace("\\", r"\\"), value)
        return value

    def command(self, service: ServiceSpec, replica: int) -> list[str]:
        return [self.text(word, service, replica) for word in service.command]

    def environment(self, service: ServiceSpec, replica: int) -> dict[str, str]:
        return {name: self.text(value, service, replica) for name, value in service.environment.items()}


def listening_ports(service: ServiceSpec) -> list[int]:
    """The container ports that a service listens on: `0.0.0.0:PORT` in its values, and what it publishes."""
    found = {port.container_port for port in service.ports}
    for value in (*service.environment.values(), *service.command):
        found.update(int(port) for port in LISTEN.findall(value))
    return sorted(found)


def published(topology: Topology) -> Iterable[tuple[str, str, int]]:
    """(service, host, port) of every port that must be free on this machine."""
    for service in topology.services.values():
        for port in service.ports:
            yield service.name, port.host, port.host_port
