"""Fetches a model folder: written aside, checked file by file, renamed when whole. Half a model is never left."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from gateway.client_errors import BrokenDownload, Invalid, Unreachable, refusal

if TYPE_CHECKING:
    from gateway.client import Client

CHUNK = 1024 * 1024


def export(client: Client, http: httpx.Client, job: str, directory: Path, checkpoint: str | None) -> dict[str, Any]:
    """Download the model of `job` to `directory`, which must not exist or be empty."""
    directory = directory.resolve()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Invalid(f"{directory} exists and is not an empty folder: choose another", 422, [])
    listing = client.files(job, checkpoint=checkpoint)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    except OSError as error:
        raise Invalid(f"cannot write beside {directory}: {error.strerror}", 422, []) from error
    try:
        for file in listing["files"]:
            address = f"/v1/jobs/{listing['job']}/files/{listing['checkpoint']}/{quote(file['name'], safe='')}"
            _fetch(http, address, file, aside / Path(file["name"]).name)
        aside.chmod(0o755)
        os.replace(aside, directory)
    except OSError as error:
        raise BrokenDownload(f"cannot write {directory}: {error.strerror or error}") from error
    except httpx.TransportError as error:
        raise Unreachable(f"the download of {job} broke off: {error or type(error).__name__}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return {**listing, "directory": str(directory)}


def _fetch(http: httpx.Client, address: str, file: dict[str, Any], target: Path) -> None:
    sha256, size = hashlib.sha256(), 0
    with http.stream("GET", address) as response, target.open("wb") as out:
        if response.status_code != 200:
            response.read()
            raise refusal(response.status_code, _json_or_none(response))
        for chunk in response.iter_bytes(CHUNK):
            out.write(chunk)
            sha256.update(chunk)
            size += len(chunk)
        out.flush()
        os.fsync(out.fileno())
    if size != file["size"] or (file["sha256"] and sha256.hexdigest() != file["sha256"]):
        raise BrokenDownload(f"{file['name']}: {size} bytes came, not the {file['size']} announced: try again")


def _json_or_none(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None
