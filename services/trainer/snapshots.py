"""Versions on their way to the engines: folders under `snapshots/<job>/`, the newest announced on one subject."""

from __future__ import annotations

import shutil
from pathlib import Path

from shared.wire.bus.api import Bus, Conflict
from shared.wire.ledger import Fenced
from shared.wire.messages import BadMessage, FileEntry, Snapshot, Version, Weights, decode, encode
from shared.wire.topics import SNAPSHOTS, WEIGHTS, snapshot_subject, weights_subject

NEWEST_KEPT = 2


def folder_of(data_dir: Path, job: str, version: Version) -> Path:
    return data_dir / "snapshots" / job / str(version)


async def newest_fetchable(bus: Bus, data_dir: Path, job: str) -> Version | None:
    """The newest version that was announced, by this service or by weight-broadcast, and whose files are still here."""
    announced: list[tuple[Version, list[FileEntry]]] = []
    weights = await announced_weights(bus, job)
    if weights is not None:
        announced.append((weights.version, weights.files))
    stored = await bus.get(SNAPSHOTS.name, subject=snapshot_subject(job))
    if stored is not None:
        snapshot = decode(Snapshot, stored.data)
        announced.append((snapshot.version, snapshot.files))
    for version, files in sorted(announced, key=lambda a: a[0], reverse=True):
        if _complete(folder_of(data_dir, job, version), files):
            return version
    return None


async def announced_weights(bus: Bus, job: str) -> Weights | None:
    stored = await bus.get(WEIGHTS.name, subject=weights_subject(job))
    return None if stored is None else decode(Weights, stored.data)


async def publish(bus: Bus, data_dir: Path, job: str, version: Version, files: list[FileEntry]) -> None:
    """Announce a folder, unless a newer holder has announced one: then `Fenced`."""
    path = folder_of(data_dir, job, version).relative_to(data_dir).as_posix()
    message = Snapshot(job=job, version=version, path=path, files=files)
    while True:
        stored = await bus.get(SNAPSHOTS.name, subject=snapshot_subject(job))
        if stored is not None:
            last = decode(Snapshot, stored.data).version
            if last == version:
                return  # an earlier try of this very message was stored
            if last.epoch > version.epoch:
                raise Fenced(f"trainer of {job}: version {last} was announced by a newer holder")
        try:
            await bus.publish(
                snapshot_subject(job),
                encode(message),
                message_id=f"{job}/snapshot/{version}",
                expected_last_subject_sequence=stored.sequence if stored is not None else 0,
            )
        except Conflict:
            continue
        return


async def prune(bus: Bus, data_dir: Path, job: str, current: Version) -> list[str]:
    """Delete the folders that nobody can be about to fetch: neither kept by weight-broadcast, nor the newest ones.

    `current`: what was announced last. A killed holder may have left folders of later steps that it never announced.
    """
    root = data_dir / "snapshots" / job
    present = []
    for path in root.iterdir() if root.is_dir() else []:
        try:
            present.append(Version.parse(path.name))
        except BadMessage:
            continue
    weights = await announced_weights(bus, job)
    needed = {current, *sorted(present, reverse=True)[:NEWEST_KEPT]}
    if weights is not None:
        needed |= {weights.version, *weights.kept}
    gone = [version for version in present if version not in needed]
    for version in gone:
        (root / f"{version}.json").unlink(missing_ok=True)  # weight-broadcast's list of a version that it checked
        shutil.rmtree(root / str(version), ignore_errors=True)
    return [str(version) for version in gone]


def _complete(folder: Path, files: list[FileEntry]) -> bool:
    """Every file is there with its size; receivers check the digests."""
    try:
        return all((folder / entry.name).stat().st_size == entry.size for entry in files)
    except OSError:
        return False
