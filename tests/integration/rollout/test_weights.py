"""Fetching a version: on the same host by link, else over HTTP with resume; never anything but what was announced."""

import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from services.rollout.errors import WeightsError
from services.rollout.weights import WeightsStore
from shared.wire.messages import FileEntry, Version, Weights

VERSION = Version(3, 1)
CONTENT = {"model.safetensors": os.urandom(300_000), "config.json": b"{}", "empty": b""}


class Files:
    """An HTTP server of one folder that answers ranges; `cut` bodies break off in the middle, so many times."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cut, self.asked = folder, 0, []  # type: ignore[var-annotated]
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = outer.folder / self.path.lstrip("/")
                start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
                outer.asked.append((path.name, start))
                if not path.is_file():
                    self.send_error(404)
                    return
                body = path.read_bytes()[start:]
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if outer.cut and len(body) > 1000:
                    outer.cut -= 1
                    self.wfile.write(body[: len(body) // 2])
                    self.close_connection = True
                    return
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[Files]:
    folder = tmp_path / "origin" / "job"
    write(folder, VERSION, CONTENT)
    server = Files(tmp_path / "origin")
    yield server
    server.close()


def write(job_folder: Path, version: Version, content: dict[str, bytes]) -> None:
    folder = job_folder / str(version)
    folder.mkdir(parents=True)
    for name, data in content.items():
        (folder / name).write_bytes(data)
    (job_folder / f"{version}.json").write_bytes(msgspec.json.encode(entries(content)))


def entries(content: dict[str, bytes]) -> list[FileEntry]:
    return [
        FileEntry(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest()) for name, data in content.items()
    ]


def announced(*, local: Path | str = "", urls: tuple[str, ...] = (), content: dict[str, bytes] = CONTENT) -> Weights:
    return Weights(job="job", version=VERSION, files=entries(content), host="h", local_path=str(local), urls=list(urls))


async def fetched(store_folder: Path, weights: Weights, version: Version = VERSION) -> Path:
    async with httpx.AsyncClient() as http:
        return await WeightsStore(store_folder, http).fetch(weights, version)


def holds(folder: Path, content: dict[str, bytes] = CONTENT) -> bool:
    return {path.name: path.read_bytes() for path in folder.iterdir()} == content


async def test_on_the_same_host_it_is_linked_and_outlives_the_original(tmp_path: Path, origin: Files) -> None:
    local = origin.folder / "job" / str(VERSION)
    folder = await fetched(tmp_path / "cache", announced(local=local))
    assert folder == tmp_path / "cache" / "job" / "3.1"
    assert (folder / "model.safetensors").stat().st_ino == (local / "model.safetensors").stat().st_ino
    for path in local.iterdir():
        path.unlink()
    assert holds(folder)
    assert await fetched(tmp_path / "cache", announced(local=local)) == folder, "what is held is not fetched again"


async def test_elsewhere_it_is_downloaded_and_a_break_is_resumed(tmp_path: Path, origin: Files) -> None:
    origin.cut = 2
    folder = await fetched(tmp_path / "cache", announced(local="/nowhere/3.1", urls=(f"{origin.url}/job/3.1",)))
    assert holds(folder)
    starts = [start for name, start in origin.asked if name == "model.safetensors"]
    assert starts == [0, 150_000, 225_000]
    assert not list((tmp_path / "cache" / "job").glob("*.part"))


async def test_a_dead_url_is_passed_over(tmp_path: Path, origin: Files) -> None:
    urls = ("http://127.0.0.1:9/job/3.1", f"{origin.url}/job/3.1")
    assert holds(await fetched(tmp_path / "cache", announced(urls=urls)))


async def test_a_file_that_is_not_as_announced_is_never_used(tmp_path: Path, origin: Files) -> None:
    wrong = {**CONTENT, "model.safetensors": os.urandom(300_000)}
    with pytest.raises(WeightsError, match="not the file that was announced"):
        await fetched(tmp_path / "cache", announced(urls=(f"{origin.url}/job/3.1",), content=wrong))
    local = origin.folder / "job" / str(VERSION)
    with pytest.raises(WeightsError, match="no url is announced"):
        await fetched(tmp_path / "cache", announced(local=local, content=wrong))
    assert not (tmp_path / "cache" / "job" / "3.1").exists()


async def test_an_older_version_is_found_beside_the_announced_one(tmp_path: Path, origin: Files) -> None:
    older = {**CONTENT, "model.safetensors": os.urandom(1000)}
    write(origin.folder / "job", Version(2, 1), older)
    near = await fetched(tmp_path / "a", announced(local=origin.folder / "job" / "3.1"), Version(2, 1))
    far = await fetched(tmp_path / "b", announced(urls=(f"{origin.url}/job/3.1",)), Version(2, 1))
    assert holds(near, older) and holds(far, older)
    with pytest.raises(WeightsError, match=r"version 1\.1 cannot be fetched any more"):
        await fetched(tmp_path / "c", announced(urls=(f"{origin.url}/job/3.1",)), Version(1, 1))


async def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="names a file"):
        await fetched(tmp_path / "cache", announced(local="/x/3.1", content={"../../evil": b"x"}))


async def test_only_what_is_wanted_stays(tmp_path: Path, origin: Files) -> None:
    async with httpx.AsyncClient() as http:
        store = WeightsStore(tmp_path / "cache", http)
        weights = announced(local=origin.folder / "job" / "3.1")
        for step in range(4, 9):
            write(origin.folder / "job", Version(step, 1), CONTENT)
            await store.fetch(weights, Version(step, 1))
        store.prune("job", {"7.1", "8.1"})
        assert sorted(path.name for path in (tmp_path / "cache" / "job").iterdir()) == ["7.1", "8.1"]
        store.prune("never fetched", {"7.1"})
        store.clear()
        assert not (tmp_path / "cache").exists()
