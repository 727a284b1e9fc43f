"""Real weight-broadcast processes over a real server: files by both ways, kills, ends of jobs."""

from __future__ import annotations

import hashlib
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from shared.wire.messages import Version


async def test_a_version_is_read_on_the_same_host_and_over_http_and_both_are_what_the_trainer_wrote(
    nats_url: str, start: Callable[..., Any], new_world: Callable[..., Any]
) -> None:
    start(nats_url)
    async with new_world(nats_url) as world, httpx.AsyncClient() as http:
        await world.snapshot(0, size=3_000_000)
        weights = await world.until_announced(0)
        for entry in weights.files:
            here = (Path(weights.local_path) / entry.name).read_bytes()
            there = (await http.get(f"{weights.urls[0]}/{entry.name}")).content
            assert here == there and hashlib.sha256(here).hexdigest() == entry.sha256
        half = await http.get(f"{weights.urls[0]}/model.safetensors", headers={"Range": "bytes=1500000-"})
        assert half.status_code == 206 and half.content == here[1_500_000:]


async def test_a_snapshot_that_does_not_fit_its_checksums_is_refused_and_people_are_told(
    nats_url: str, start: Callable[..., Any], new_world: Callable[..., Any], until: Callable[..., Any]
) -> None:
    start(nats_url)
    async with new_world(nats_url) as world:
        await world.snapshot(0)
        await world.until_announced(0)
        await world.snapshot(1, harm=True)
        await until(world.notices)
        assert "version 1.1 is refused" in (await world.notices())[0]
        assert (await world.announced()).version == Version(0, 1)
        await world.snapshot(2)
        await world.until_announced(2)


async def test_a_held_version_can_be_fetched_for_as_long_as_it_is_held(
    nats_url: str, start: Callable[..., Any], new_world: Callable[..., Any], until: Callable[..., Any]
) -> None:
    start(nats_url)
    async with new_world(nats_url) as world, httpx.AsyncClient() as http:
        for step in range(6):
            await world.snapshot(step)
            weights = await world.until_announced(step)
            await world.hold("1.1")

        async def kept() -> bool:
            await world.hold("1.1")
            return (await world.announced()).kept == [Version(step, 1) for step in (1, 4, 5)]

        await until(kept)
        base = weights.urls[0].rpartition("/")[0]
        files = (await http.get(f"{base}/1.1.json")).json()
        assert {file["name"] for file in files} == {"config.json", "model.safetensors"}
        assert (await http.get(f"{base}/1.1/config.json")).status_code == 200

        async def let_go() -> bool:
            return (await http.get(f"{base}/1.1/config.json")).status_code == 404

        await until(let_go)
        assert (await world.announced()).kept == [Version(4, 1), Version(5, 1)]


async def test_killed_and_started_again_it_serves_what_was_announced_and_announces_what_came_meanwhile(
    nats_url: str, start: Callable[..., Any], new_world: Callable[..., Any], until: Callable[..., Any]
) -> None:
    first = start(nats_url)
    async with new_world(nats_url) as world, httpx.AsyncClient() as http:
        await world.snapshot(0)
        await world.until_announced(0)
        first.end(signal.SIGKILL)
        second = start(nats_url)
        await until(lambda: second.said("version 0.1 is announced"))

        async def served() -> bool:
            weights = await world.announced()
            try:
                return (await http.get(f"{weights.urls[0]}/config.json")).status_code == 200
            except httpx.HTTPError:
                return False

        await until(served)
        second.end(signal.SIGKILL)
        await world.snapshot(1)
        await world.snapshot(2)
        start(nats_url)
        weights = await world.until_announced(2)
        assert Version(0, 1) in weights.kept


async def test_told_to_stop_it_ends_cleanly_and_leaves_no_copy_in_memory(
    nats_url: str, start: Callable[..., Any], new_world: Callable[..., Any], tmp_path: Path
) -> None:
    process = start(nats_url)
    async with new_world(nats_url) as world:
        await world.snapshot(0)
        weights = await world.until_announced(0)
        assert Path(weights.local_path).is_relative_to(tmp_path / "shared")
        assert process.end(signal.SIGTERM) == 0
        assert not any(path.is_file() for path in (tmp_path / "shared").rglob("*"))
        assert (world.data / "snapshots" / world.job / "0.1" / "config.json").exists()
    assert "ERROR" not in process.log.read_text()


async def test_a_deleted_job_leaves_no_file_and_a_cancelled_one_only_its_last_snapshot(
    nats_url: str, start: Callable[..., Any], new_world: Callable[..., Any], until: Callable[..., Any], tmp_path: Path
) -> None:
    process = start(nats_url)
    async with new_world(nats_url) as world:
        for step in (0, 1):
            await world.snapshot(step)
            await world.until_announced(step)
        snapshots = world.data / "snapshots" / world.job
        await world.set_state("cancelled")
        await until(lambda: sorted(path.name for path in snapshots.iterdir()) == ["1.1", "1.1.json"])
        assert not any(path.is_file() for path in (tmp_path / "shared").rglob("*"))
        await world.set_state("deleting")
        await until(lambda: not snapshots.exists())
        await world.delete()

        async def nothing_announced() -> bool:
            return await world.announced() is None

        await until(nothing_announced)
    assert process.end(signal.SIGTERM) == 0


async def test_copies_that_a_killed_process_left_of_a_job_that_ended_meanwhile_are_given_back(
    nats_url: str, start: Callable[..., Any], new_world: Callable[..., Any], until: Callable[..., Any], tmp_path: Path
) -> None:
    first = start(nats_url)
    async with new_world(nats_url) as world:
        await world.snapshot(0)
        await world.until_announced(0)
        first.end(signal.SIGKILL)
        assert any(path.is_file() for path in (tmp_path / "shared").rglob("*"))
        await world.set_state("completed")
        start(nats_url)
        await until(lambda: not any(path.is_file() for path in (tmp_path / "shared").rglob("*")))


def test_a_taken_port_is_said_in_one_line(nats_url: str, start: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = start(nats_url, SLIPSTREAM_WEIGHT_BROADCAST_LISTEN=address)
        assert process.wait() == 1
    assert f"cannot listen on {address}: Address already in use" in process.log.read_text()
    assert "Traceback" not in process.log.read_text()
