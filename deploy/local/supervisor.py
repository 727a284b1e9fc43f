"""All processes of a local stack: started in dependency order, scaled while they run, ended together."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from deploy.local import places, topology
from deploy.local.process import Recipe, Replica, answers

START_LIMIT_SECONDS = 120.0


class StackError(RuntimeError):
    """The stack cannot be started or changed; one line that says why and what to do."""


def load(compose: Path, variables: Mapping[str, str], scale: Mapping[str, int]) -> topology.Topology:
    """The topology in the file `compose`, scaled. Raises `StackError`."""
    try:
        document = yaml.safe_load(compose.read_text())
    except FileNotFoundError as error:
        raise StackError(f"{compose} is not there: run this in the project's folder, or name it with --file") from error
    except yaml.YAMLError as error:
        raise StackError(f"{compose} is not YAML: {str(error).splitlines()[0]}") from error
    try:
        return topology.with_scale(topology.parse(document, variables), scale)
    except topology.TopologyError as error:
        raise StackError(f"{compose}: {error}") from error


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def require_free(host: str, port: int, service: str) -> None:
    """Raises `StackError` when something listens on `port`."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError as error:
            raise StackError(
                f"port {port} on {host}, which {service} publishes, is taken: another stack may be running "
                f"(`slipstream down` ends it), or choose another port with --port"
            ) from error


class Supervisor:
    """Owns every process of one stack. `home` holds its logs, volumes and run files."""

    def __init__(self, stack: topology.Topology, project: Path, home: Path, say: Callable[[str], None]) -> None:
        self._stack = stack
        self._project = project
        self._home = home
        self._say = say
        self._ports: dict[tuple[str, int, int], int] = {}
        self._replicas: dict[tuple[str, int], Replica] = {}
        self._changing = asyncio.Lock()

    async def up(self) -> None:
        """Start everything; returns when all that has a health check is healthy. Raises `StackError`."""
        for name, host, port in places.published(self._stack):
            require_free(host, port, name)
        for spec in self._stack.services.values():
            for number in range(1, spec.scale + 1):
                self._set_ports(spec, number)
        deadline = time.monotonic() + START_LIMIT_SECONDS
        for name in self._stack.start_order():
            spec = self._stack.services[name]
            for other, condition in spec.depends_on.items():
                if condition == "service_healthy" and other in self._stack.services:
                    await self._reached(other, deadline)
            for number in range(1, spec.scale + 1):
                self._start(spec, number)
        for name in self._stack.services:
            await self._reached(name, deadline)
        await self._ready(deadline)

    async def down(self) -> None:
        """Stop everything, dependants first, side by side where nothing depends on the order."""
        async with self._changing:
            order = self._stack.start_order()
            needed = {other for spec in self._stack.services.values() for other in spec.depends_on}
            leaves = [name for name in order if name not in needed]
            for names in (leaves, *[[name] for name in reversed(order) if name in needed]):
                stopping = [replica for (name, _), replica in self._replicas.items() if name in names]
                await asyncio.gather(*(replica.stop() for replica in stopping))
            self._replicas.clear()

    async def scale(self, wanted: Mapping[str, int]) -> None:
        """Start or stop replicas while the rest runs. Raises `StackError`."""
        async with self._changing:
            try:
                self._stack = topology.with_scale(self._stack, wanted)
            except topology.TopologyError as error:
                raise StackError(str(error)) from error
            for name, replicas in wanted.items():
                spec = self._stack.services[name]
                running = sorted(number for service, number in self._replicas if service == name)
                for number in range(1, replicas + 1):
                    if number not in running:
                        self._set_ports(spec, number)
                        self._start(spec, number)
                gone = [number for number in running if number > replicas]
                await asyncio.gather(*(self._replicas.pop((name, number)).stop() for number in gone))

    def status(self) -> list[dict[str, Any]]:
        return [
            {
                "service": name,
                "replica": number,
                "state": replica.state,
                "pid": replica.pid,
                "restarts": replica.restarts,
                "uptime_seconds": round(time.monotonic() - replica.started_at, 1) if replica.pid else 0.0,
                "ports": {str(c): p for (n, r, c), p in sorted(self._ports.items()) if (n, r) == (name, number)},
                "log": str(replica.recipe.log),
            }
            for (name, number), replica in sorted(self._replicas.items())
        ]

    def _set_ports(self, spec: topology.ServiceSpec, number: int) -> None:
        fixed = {port.container_port: port.host_port for port in spec.ports}
        for port in places.listening_ports(spec):
            self._ports.setdefault((spec.name, number, port), fixed.get(port) or free_port())

    def _where(self) -> places.Places:
        return places.Places(self._project, self._home / "volumes", self._ports)

    def _start(self, spec: topology.ServiceSpec, number: int) -> None:
        where = self._where()
        for mount in spec.mounts:
            if mount.is_volume:
                (where.volumes / mount.source).mkdir(parents=True, exist_ok=True)
        health = spec.health
        if health is not None:
            health = replace(health, command=tuple(where.text(word, spec, number) for word in health.command))
        recipe = Recipe(
            name=f"{spec.name}-{number}",
            command=where.command(spec, number),
            environment={"PYTHONUNBUFFERED": "1", **where.environment(spec, number)},
            health=health,
            restart=spec.restart,
            stop_grace_seconds=spec.stop_grace_seconds,
            log=self._home / "logs" / f"{spec.name}-{number}.log",
        )
        replica = Replica(recipe, self._say)
        self._replicas[spec.name, number] = replica
        replica.start()

    async def _ready(self, deadline: float) -> None:
        """Waits for what says that the stack as a whole can work."""
        for spec in self._stack.services.values():
            url = self._where().text(spec.ready_url, spec, 1)
            while url and not await asyncio.to_thread(answers, url, 2.0):
                if time.monotonic() > deadline:
                    raise StackError(f"not every service is alive after {START_LIMIT_SECONDS:.0f} s: ask {url}")
                await asyncio.sleep(0.1)

    async def _reached(self, name: str, deadline: float) -> None:
        for (service, _), replica in list(self._replicas.items()):
            if service != name:
                continue
            waits = [asyncio.create_task(event.wait()) for event in (replica.reached, replica.gave_up)]
            _, pending = await asyncio.wait(
                waits, timeout=max(0.0, deadline - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
            )
            for task in pending:
                task.cancel()
            if not replica.reached.is_set():
                raise StackError(
                    f"{replica.recipe.name} did not come up (it is {replica.state}): "
                    f"{last_line(replica.recipe.log)}; the whole log is {replica.recipe.log}"
                )


def last_line(log: Path) -> str:
    """The last thing that a process said, for an error message."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return "it wrote no log"
    return lines[-1] if lines else "it wrote nothing"
