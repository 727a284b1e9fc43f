"""Folders that are there whole or not at all: written aside, renamed; durable ones synced and read back.

A full disk is recognised by its facts, not by the error: the libraries that write tensors report it in as many ways as
there are libraries.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from shared.wire.messages import FileEntry

ASIDE = ".writing"  # suffix of a folder that is not finished
MANIFEST = "manifest.json"
RESERVE_BYTES = 1024 * 1024


class DiskFull(OSError):
    """Not enough room; the text is one line that says where and how much is missing."""


class ReadBackFailed(OSError):
    """What was written is not what the disk gives back."""


def write_folder(
    target: Path,
    fill: Callable[[Path], None],
    *,
    needs_bytes: int,
    durable: bool = False,
    manifest: Callable[[list[FileEntry]], bytes] | None = None,
) -> list[FileEntry]:
    """Make `target` with what `fill` writes into the folder that it is given; its files with their digests.

    `manifest` makes the text of `manifest.json` from them. `durable`: every file and folder and the parent are synced,
    and each file is read back from the disk against its digest.
    On any failure nothing is left of it. Raises `DiskFull` before or instead of the error that a full disk causes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _check_room(target, needs_bytes)
    aside = target.with_name(f"{target.name}{ASIDE}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        fill(aside)
        entries = file_entries(aside)
        if manifest is not None:
            (aside / MANIFEST).write_bytes(manifest(entries))
        if durable:
            for path in [*aside.rglob("*"), aside]:
                _sync(path)
        aside.rename(target)
        if durable:
            _sync(target.parent)
            read_back(target, entries)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        _check_room(target, needs_bytes)
        raise
    return entries


def read_back(folder: Path, entries: Iterable[FileEntry]) -> None:
    """Compare each file with its digest, past the kernel's cache; `ReadBackFailed` names the first that differs."""
    for entry in entries:
        path = folder / entry.name
        try:
            _forget_cached(path)
            same = path.stat().st_size == entry.size and digest_of(path) == entry.sha256
        except OSError as error:
            raise ReadBackFailed(f"{path} cannot be read: {error.strerror or error}") from error
        if not same:
            raise ReadBackFailed(f"{path} does not read back as it was written")


def file_entries(folder: Path) -> list[FileEntry]:
    """Every file under `folder`, by name, with size and sha256."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return [FileEntry(name=p.relative_to(folder).as_posix(), size=p.stat().st_size, sha256=digest_of(p)) for p in files]


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_unfinished(root: Path) -> list[str]:
    """Delete what a killed writer left aside; the names."""
    names = []
    for path in sorted(root.glob(f"*{ASIDE}")) if root.is_dir() else []:
        shutil.rmtree(path, ignore_errors=True)
        names.append(path.name)
    return names


def _check_room(target: Path, needs_bytes: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < needs_bytes + RESERVE_BYTES:
        raise DiskFull(f"disk full: {target} needs {_mebibytes(needs_bytes)}, {_mebibytes(free)} are free")


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _forget_cached(path: Path) -> None:
    """Ask the kernel to drop its copy, so that reading back reads the disk."""
    if not hasattr(os, "posix_fadvise"):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
