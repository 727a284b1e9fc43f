"""The file server gives a version's files, whole or in part, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from services.weight_broadcast.server import application, listen
from services.weight_broadcast.store import Store
from shared.wire.messages import FileEntry, Version

JOB = "sums-1a2b3c"


@pytest.fixture
def store(tmp_path: Path, write_snapshot: Callable[..., Any]) -> Store:
    made = Store(tmp_path / "data", tmp_path / "shared")
    made.admit(write_snapshot(3))
    (tmp_path / "data" / "secret").write_text("secret")
    (tmp_path / "data" / "snapshots" / JOB / "3.1" / "trainer.pt").write_text("secret")
    return made


@asynccontextmanager
async def client(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(application(store))
    async with httpx.AsyncClient(transport=transport, base_url="http://weights") as made:
        yield made


async def test_a_file_comes_whole_or_from_where_a_download_broke_off(store: Store) -> None:
    async with client(store) as http:
        whole = await http.get(f"/{JOB}/3.1/model.safetensors")
        rest = await http.get(f"/{JOB}/3.1/model.safetensors", headers={"Range": "bytes=8995-"})
        middle = await http.get(f"/{JOB}/3.1/model.safetensors", headers={"Range": "bytes=3-5"})
        beyond = await http.get(f"/{JOB}/3.1/model.safetensors", headers={"Range": "bytes=9000-"})
    assert (whole.status_code, whole.content) == (200, b"3.1" * 3000)
    assert (rest.status_code, rest.content, rest.headers["content-range"]) == (206, b".13.1", "bytes 8995-8999/9000")
    assert (middle.status_code, middle.content) == (206, b"3.1")
    assert beyond.status_code == 416


async def test_the_file_list_of_a_version_is_had_by_its_name(store: Store) -> None:
    async with client(store) as http:
        reply = await http.get(f"/{JOB}/3.1.json")
    assert msgspec.json.decode(reply.content, type=list[FileEntry]) == store.file_list(JOB, Version(3, 1))


@pytest.mark.parametrize(
    "path",
    [
        f"/{JOB}/3.1/trainer.pt",
        f"/{JOB}/3.1/..%2f..%2f..%2fsecret",
        f"/{JOB}/3.1/%2e%2e/%2e%2e/%2e%2e/secret",
        f"/{JOB}/3.1/%2fetc%2fpasswd",
        f"/{JOB}/../../secret/x",
        "/..%2f..%2f/3.1/config.json",
        "/%2e%2e/3.1/config.json",
        f"/{JOB}/..%2f3.1/config.json",
        f"/{JOB}/3.1/config.json%00",
        f"/{JOB}/3.1/",
        f"/{JOB}/4.1/config.json",
        f"/{JOB}/4.1.json",
        f"/{JOB}/x.json",
        "/Not-A-Job/3.1/config.json",
        "/",
        "/docs",
    ],
)
async def test_whatever_is_not_a_file_of_a_version_is_not_found(store: Store, path: str) -> None:
    async with client(store) as http:
        reply = await http.get(path)
    assert reply.status_code == 404
    assert "secret\n" not in reply.text and "root:" not in reply.text


async def test_a_version_that_was_removed_is_not_found_any_more(store: Store) -> None:
    store.remove(JOB, Version(3, 1))
    async with client(store) as http:
        assert (await http.get(f"/{JOB}/3.1/config.json")).status_code == 404
        assert (await http.get("/healthz")).status_code == 200


def test_a_port_that_is_taken_is_said_with_its_address() -> None:
    with listen(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            listen(("127.0.0.1", port))
