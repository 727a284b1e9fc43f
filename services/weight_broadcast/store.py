"""Where versions lie on this host.

    <data>/snapshots/<job>/<version>/       written by the trainer: the source of everything here
    <data>/snapshots/<job>/<version>.json   its file list, put there once it was checked
    <shared>/<store id>/<job>/<version>/    the copy that engines on this host read, in memory, where there is room
    <shared>/<store id>/<job>/<version>.json

A version is *here* when its file list is and all its files are, at either place. All methods block; the caller runs
the changing ones one after the other in one thread.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from services.weight_broadcast import folders
from services.weight_broadcast.folders import BadSnapshot
from services.weight_broadcast.versions import in_time
from shared.wire.messages import BadMessage, FileEntry, Snapshot, Version
from shared.wire.topics import checked

log = logging.getLogger(__name__)
STORE_ID = "weight-broadcast.id"
UNFINISHED_SECONDS = 600.0  # a copy that is still not whole after so long was given up
ROOM_FACTOR = 2  # a copy is made only where it leaves as much room again


class Store:
    """The versions of all jobs on one data folder. `shared_dir` None: no copies, the snapshots are served."""

    def __init__(self, data_dir: Path, shared_dir: Path | None) -> None:
        self._snapshots = data_dir.resolve() / "snapshots"
        self._copies = None if shared_dir is None else shared_dir / _store_id(data_dir.resolve())
        self._closed: set[str] = set()
        self._stopped = False

    # --- reading ---

    def file_list(self, job: str, version: Version) -> list[FileEntry] | None:
        for root in self._roots(job):
            files = folders.read_file_list(root / f"{version}.json")
            if files is not None:
                return files
        return None

    def folder(self, job: str, version: Version, files: Sequence[FileEntry] | None = None) -> Path | None:
        """Where the version can be read; None when it is not here (any more)."""
        files = files or self.file_list(job, version)
        if files is None:
            return None
        places = [root / str(version) for root in self._roots(job)]
        return next((place for place in places if folders.complete(place, files)), None)

    def versions(self, job: str) -> set[Version]:
        """Every version that is here."""
        found = {_version(path.stem) for root in self._roots(job) for path in _entries(root) if path.suffix == ".json"}
        return {version for version in found if version is not None and self.folder(job, version) is not None}

    # --- changing ---

    def admit(self, snapshot: Snapshot) -> Path:
        """Check a snapshot's files and put them where engines read them. Raises `BadSnapshot`."""
        source = self._snapshots / checked(snapshot.job) / str(snapshot.version)
        if (self._snapshots.parent / snapshot.path).resolve() != source:
            raise BadSnapshot(f"its path {snapshot.path!r} is not snapshots/{snapshot.job}/{snapshot.version}")
        folders.check_names(snapshot.files)
        place = self._copy(snapshot.job, snapshot.version, snapshot.files)
        if place is None:
            folders.verify(source, snapshot.files)
        if source.is_dir():
            folders.write_file_list(source.with_name(f"{snapshot.version}.json"), snapshot.files)
        return place or source

    def restore(self, job: str, version: Version, files: Sequence[FileEntry] | None = None) -> bool:
        """Make a version that was here before readable again; False when it is gone, or damaged."""
        files = files or self.file_list(job, version)
        if files is None:
            return False
        source = self._snapshots / job / str(version)
        if source.is_dir() and not source.with_name(f"{version}.json").exists():
            folders.write_file_list(source.with_name(f"{version}.json"), files)
        copied = self._copied(job, version)
        if copied is not None and not folders.complete(copied, files):
            try:
                self._copy(job, version, files)
            except BadSnapshot as error:
                log.warning("job %s: version %s is not served: %s", job, version, error)
                return False
        return self.folder(job, version, files) is not None

    def remove(self, job: str, version: Version) -> None:
        for root in self._roots(job):
            (root / f"{version}.json").unlink(missing_ok=True)  # first: without it the version is not here
            shutil.rmtree(root / str(version), ignore_errors=True)

    def clean(self, job: str, keep: set[Version], before: Version) -> None:
        """Remove what was made before the version `before` and is not in `keep`, and copies never finished.

        Such folders were never announced: their trainer was killed, or another version came first.
        """
        for root in self._roots(job):
            for path in _entries(root):
                version = _version(path.name.removesuffix(".json"))
                if version is not None and version not in keep and in_time(version) < in_time(before):
                    self.remove(job, version)
                elif path.name.endswith(folders.PART_SUFFIX) and _age(path) > UNFINISHED_SECONDS:
                    _remove(path)

    def close(self, job: str, *, everything: bool) -> None:
        """The job has ended: its copies go, and its snapshots but the last; with `everything` that too.

        No copy is made any more.
        """
        self._closed.add(job)
        if self._copies is not None:
            shutil.rmtree(self._copies / checked(job), ignore_errors=True)
        if everything:
            shutil.rmtree(self._snapshots / checked(job), ignore_errors=True)
        for version in sorted(self.versions(job), key=in_time)[:-1]:
            self.remove(job, version)

    def sweep(self, jobs: set[str]) -> None:
        """Remove the copies of jobs that are none of `jobs`: a killed process leaves them in memory."""
        for path in _entries(self._copies) if self._copies is not None else []:
            if path.name not in jobs:
                _remove(path)

    def clear_copies(self) -> None:
        """Memory is given back when the service stops; no copy is made any more."""
        self._stopped = True
        if self._copies is not None:
            shutil.rmtree(self._copies, ignore_errors=True)

    # --- inside ---

    def _roots(self, job: str) -> list[Path]:
        roots = [self._snapshots / checked(job)]
        return roots if self._copies is None else [self._copies / job, *roots]

    def _copied(self, job: str, version: Version) -> Path | None:
        return None if self._copies is None else self._copies / job / str(version)

    def _copy(self, job: str, version: Version, files: Sequence[FileEntry]) -> Path | None:
        """A copy for engines on this host; None where there is no room for one."""
        target = self._copied(job, version)
        if target is None or job in self._closed or self._stopped:
            return None
        try:
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            size = sum(entry.size for entry in files)
            linked = target.parent.stat().st_dev == self._snapshots.stat().st_dev  # a link takes no room
            if not linked and _room(target.parent) < ROOM_FACTOR * size:
                log.info("job %s: no room in %s for %d bytes, serving the snapshot itself", job, target.parent, size)
                return None
            folders.copy(self._snapshots / job / str(version), target, files)
            folders.write_file_list(target.with_name(f"{version}.json"), files)
        except OSError as error:
            log.warning("job %s: no copy of version %s in %s: %s", job, version, target.parent, error)
            return None
        return target


def default_shared_dir() -> Path | None:
    """A folder in shared memory that is this user's own; None where there is no shared memory."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or not os.access(memory, os.W_OK):
        return None
    folder = memory / f"slipstream-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        log.warning("%s belongs to somebody else; serving the snapshots themselves", folder)
        return None
    return folder


def _store_id(data_dir: Path) -> str:
    """Tells this data folder's copies from those of others on the same host; made once, kept in the folder."""
    path = data_dir / STORE_ID
    data_dir.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x") as file:
            file.write(secrets.token_hex(8))
    except FileExistsError:
        pass
    return path.read_text().strip() or "shared"


def _room(folder: Path) -> int:
    """Bytes that a copy may take: what the file system has, and for memory no more than half of what is available."""
    free = shutil.disk_usage(folder).free
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return free
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), free)
    return min(free, available // 2) if str(folder).startswith("/dev/shm/") else free


def _version(name: str) -> Version | None:
    try:
        return Version.parse(name)
    except BadMessage:
        return None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
