"""Files of one version: checking them, and copying them to where others read them. No state, no bus."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shared.wire.messages import FileEntry

PART_SUFFIX = ".part"
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}", flags=re.ASCII)
CHUNK_BYTES = 1024 * 1024


class BadSnapshot(Exception):
    """A snapshot that must not be announced; the text says which file and what is wrong with it."""


def check_names(files: Sequence[FileEntry]) -> None:
    """Every name is a plain one and stands once."""
    if not files:
        raise BadSnapshot("it names no file")
    for entry in files:
        if not FILE_NAME.fullmatch(entry.name):
            raise BadSnapshot(f"{entry.name!r} is not a plain file name")
    if len({entry.name for entry in files}) != len(files):
        raise BadSnapshot("it names a file twice")


def complete(folder: Path, files: Sequence[FileEntry]) -> bool:
    """Every file is there with its size."""
    try:
        return all((folder / entry.name).stat().st_size == entry.size for entry in files)
    except OSError:
        return False


def verify(folder: Path, files: Sequence[FileEntry]) -> None:
    """Read every file against its digest. Raises `BadSnapshot`."""
    for entry in files:
        _transfer(folder, entry, None)


def copy(folder: Path, target: Path, files: Sequence[FileEntry]) -> None:
    """Make `target` hold exactly `files`, checked as they are read; whole or not at all.

    Hard links where both lie in one file system, else copies. Raises `BadSnapshot`, or OSError when there is no room.
    """
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}{PART_SUFFIX}")
    part.mkdir(parents=True)
    try:
        for entry in files:
            if _link(folder / entry.name, part / entry.name):
                _transfer(part, entry, None)
            else:
                _transfer(folder, entry, part / entry.name)
        shutil.rmtree(target, ignore_errors=True)
        _rename(part, target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _rename(part: Path, target: Path) -> None:
    try:
        part.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shutil.rmtree(part, ignore_errors=True)  # another process made the same version in this moment


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise BadSnapshot(f"{source} is missing") from None
        return False
    return True


def _transfer(folder: Path, entry: FileEntry, target: Path | None) -> None:
    """Read a file whole against its size and digest, into `target` if there is one."""
    path = folder / entry.name
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        missing = "is missing" if error.errno == errno.ENOENT else f"cannot be read: {error.strerror}"
        raise BadSnapshot(f"{path} {missing}") from None
    digest, size = hashlib.sha256(), 0
    with os.fdopen(handle, "rb") as source, open(target or os.devnull, "wb") as out:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            if target is not None:
                out.write(chunk)
    if size != entry.size:
        raise BadSnapshot(f"{path} has {size} bytes, {entry.size} were announced")
    if digest.hexdigest() != entry.sha256:
        raise BadSnapshot(f"{path} is not the file that was announced (sha256)")


def write_file_list(path: Path, files: Sequence[FileEntry]) -> None:
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART_SUFFIX}")
    part.write_bytes(msgspec.json.encode(list(files)))
    part.replace(path)


def read_file_list(path: Path) -> list[FileEntry] | None:
    """None when there is none, or none that can be read."""
    try:
        files = msgspec.json.decode(path.read_bytes(), type=list[FileEntry])
        check_names(files)
    except (OSError, msgspec.MsgspecError, BadSnapshot):
        return None
    return files
