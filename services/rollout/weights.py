"""A version's files on this host, each checked against its sha256 before the engine sees it.

    announced folder on this host  --hard link, or in place-->  verified
    else its urls                  --HTTP, resumed by range-->  verified

A hard link costs nothing and survives the original's deletion. Across file systems the files are used where they lie:
a copy would cost what the shared memory under them saves.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path, PurePosixPath

import httpx
import msgspec

from services.rollout.errors import WeightsError
from shared.wire.messages import FileEntry, Version, Weights

log = logging.getLogger("rollout")
DOWNLOAD_SECONDS = 30.0  # without a byte
ROUNDS = 3


class WeightsStore:
    """Fetched versions under `folder`/<job>/<version>; `http` fetches what is not on this host."""

    def __init__(self, folder: Path, http: httpx.AsyncClient) -> None:
        self._folder = folder
        self._http = http

    async def fetch(self, announced: Weights, version: Version) -> Path:
        """A folder that holds exactly `version`, verified. Raises `WeightsError` when it cannot be had any more."""
        here = Path(announced.local_path).parent / str(version) if announced.local_path else None
        urls = [f"{url.rstrip('/').rpartition('/')[0]}/{version}" for url in announced.urls]
        files = announced.files if version == announced.version else await self._manifest(here, urls, version)
        for file in files:
            if file.name != PurePosixPath(file.name).name or file.name in ("", ".", ".."):
                raise WeightsError(f"version {version} of {announced.job} names a file {file.name!r}")
        cached = self._folder / announced.job / str(version)
        for folder in (cached, here):
            if folder is None or not await asyncio.to_thread(complete, folder, files):
                continue
            if folder == cached:
                return cached
            return await asyncio.to_thread(linked, folder, cached, files)
        if not urls:
            raise WeightsError(f"version {version} of {announced.job} is not at {here}, and no url is announced")
        return await self._download(urls, cached, files, version)

    def clear(self) -> None:
        """Remove everything."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def forget(self, job: str) -> None:
        """Remove all versions of a job that is gone."""
        shutil.rmtree(self._folder / job, ignore_errors=True)

    def prune(self, job: str, keep: Collection[str]) -> None:
        """Remove the job's versions that are not in `keep`."""
        folder = self._folder / job
        for version in folder.iterdir() if folder.is_dir() else ():
            if version.name.removesuffix(".part") not in keep:
                shutil.rmtree(version, ignore_errors=True)

    async def _manifest(self, here: Path | None, urls: list[str], version: Version) -> list[FileEntry]:
        """The file list of a version other than the announced one lies beside its folder."""
        bodies = [await asyncio.to_thread(read_if_there, here.parent / f"{version}.json")] if here is not None else []
        for url in urls if not any(bodies) else ():
            try:
                response = await self._http.get(f"{url}.json", timeout=DOWNLOAD_SECONDS)
            except httpx.HTTPError:
                continue
            bodies.append(response.content if response.status_code == 200 else None)
        for body in bodies:
            if body is not None:
                try:
                    return msgspec.json.decode(body, type=list[FileEntry])
                except msgspec.MsgspecError as error:
                    raise WeightsError(f"the file list of version {version} cannot be read: {error}") from error
        raise WeightsError(f"version {version} cannot be fetched any more (no file list)")

    async def _download(self, urls: list[str], folder: Path, files: list[FileEntry], version: Version) -> Path:
        part = folder.with_name(folder.name + ".part")
        part.mkdir(parents=True, exist_ok=True)
        for file in files:
            await self._download_file(urls, part / file.name, file, version)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
        return folder

    async def _download_file(self, urls: list[str], path: Path, file: FileEntry, version: Version) -> None:
        """From each url in turn; a break is resumed, a wrong file begun anew."""
        trouble = ""
        for _ in range(ROUNDS):
            for url in urls:
                try:
                    await self._get(f"{url}/{file.name}", path, file.size)
                except (httpx.HTTPError, OSError) as error:
                    trouble = f"{url}: {type(error).__name__}: {error}"
                    continue
                if await asyncio.to_thread(sound, path, file):
                    return
                trouble = f"{url}: {file.name} is not the file that was announced (sha256)"
                path.unlink(missing_ok=True)
        raise WeightsError(f"{file.name} of version {version} cannot be fetched: {trouble}")

    async def _get(self, url: str, path: Path, size: int) -> None:
        have = path.stat().st_size if path.is_file() else 0
        if have >= size:
            if have > size:
                path.unlink()
                have = 0
            elif size:
                return
        headers = {"Range": f"bytes={have}-"} if have else {}
        async with self._http.stream("GET", url, headers=headers, timeout=DOWNLOAD_SECONDS) as response:
            response.raise_for_status()
            with path.open("ab" if response.status_code == 206 else "wb") as out:
                async for chunk in response.aiter_raw():  # as it comes: what has come is kept when the rest does not
                    out.write(chunk)


def read_if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def sound(path: Path, file: FileEntry) -> bool:
    """Whether `path` is the file that was announced."""
    try:
        if path.stat().st_size != file.size:
            return False
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
    except OSError:
        return False


def sweep_dead(root: Path, own_id: str) -> None:
    """Remove the caches that killed workers of this host left under `root`, by the process number in their names."""
    name, _, _ = own_id.rpartition("-")
    host, _, _ = name.rpartition("-")
    for folder in root.iterdir() if root.is_dir() else ():
        match = re.fullmatch(re.escape(host) + r"-(\d+)-\w+", folder.name)
        if match is not None and folder.name != own_id and not Path(f"/proc/{match[1]}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def complete(folder: Path, files: list[FileEntry]) -> bool:
    return bool(files) and all(sound(folder / file.name, file) for file in files)


def linked(source: Path, target: Path, files: list[FileEntry]) -> Path:
    """`target` with hard links to the verified files of `source`; `source` itself where links cannot be made."""
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        for file in files:
            os.link(source / file.name, part / file.name)
        part.rename(target)
    except OSError as error:
        log.debug("using %s in place: %s", source, error)
        shutil.rmtree(part, ignore_errors=True)
        return source
    return target
