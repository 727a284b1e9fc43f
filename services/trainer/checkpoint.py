"""Checkpoints: what a trainer can come back from. Files and rules; the weights are written by `policy`.

    checkpoints/<job>/<step>.<epoch>/
        model/           a complete Hugging Face folder, float32
        trainer.pt       optimizer and random state
        manifest.json    what it covers (steps, digest of their batches, ledger position), and a digest of each file

Order of a commit: the folder is written aside, synced, renamed, read back; then `trained` is appended; only then older
ones are pruned. So a folder may stand here without its record (its writer was killed in between), never the reverse.
"""

from __future__ import annotations

import enum
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from services.trainer.folders import MANIFEST, ReadBackFailed, read_back, write_folder
from shared.wire.messages import BadMessage, FileEntry, Trained, Version

STATE, MODEL = "trainer.pt", "model"
SET_ASIDE = ".set-aside"


class BrokenCheckpoint(ValueError):
    """A folder that does not read back whole; the text is one line that says what is wrong."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint says of itself. It covers steps `first..step`, trained on the batches behind `batches`."""

    schema: int = 1
    job: str
    step: int
    epoch: int
    first: int
    batches: str
    ledger_sequence: int
    masked: list[str] = []
    files: list[FileEntry] = []

    @property
    def version(self) -> Version:
        return Version(self.step, self.epoch)


class Standing(enum.Enum):
    """What a whole checkpoint is worth to the holder that finds it."""

    RECORDED = "its trained record stands in the ledger: go on from it"
    ADOPTABLE = "its writer was killed before the record: write the record, go on from it"
    FOREIGN = "another holder came between, or its batches are not the ledger's: redo its steps"


def save(root: Path, manifest: Manifest, fill: Callable[[Path], None], *, needs_bytes: int) -> Path:
    """Write a checkpoint, durably; its folder. Raises `DiskFull`, and leaves nothing behind on any failure."""
    folder = root / str(manifest.version)

    def text(files: list[FileEntry]) -> bytes:
        return msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)), indent=1)

    write_folder(folder, fill, needs_bytes=needs_bytes, durable=True, manifest=text)
    return folder


def versions(root: Path) -> list[Version]:
    """The finished checkpoints, newest first."""
    found = []
    for path in root.iterdir() if root.is_dir() else []:
        try:
            found.append(Version.parse(path.name))
        except BadMessage:
            continue  # unfinished, or set aside
    return sorted(found, reverse=True)


def verify(folder: Path) -> Manifest:
    """Read a checkpoint back whole; `BrokenCheckpoint` when anything is missing or differs."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise BrokenCheckpoint(f"{folder / MANIFEST} cannot be read: {error}") from error
    if folder.name != str(manifest.version):
        raise BrokenCheckpoint(f"{folder} says that it is {manifest.version}")
    if not any(entry.name == STATE for entry in manifest.files):
        raise BrokenCheckpoint(f"{folder / MANIFEST} does not list {STATE}")
    try:
        read_back(folder, manifest.files)
    except ReadBackFailed as error:
        raise BrokenCheckpoint(str(error)) from error
    return manifest


def standing(manifest: Manifest, trained: Trained | None, recorded_digest: str | None, my_epoch: int) -> Standing:
    """What to do with a whole checkpoint. Pure.

    `trained`: the ledger's record that names its folder. `recorded_digest`: of the batches that the ledger has for its
    steps. Without a record it is adopted only if its epoch is the last one opened before mine: else a holder in between
    may have redone its steps from an older one.
    """
    if trained is not None:
        same = (trained.first, trained.last, trained.digest) == (manifest.first, manifest.step, manifest.batches)
        return Standing.RECORDED if same else Standing.FOREIGN
    adoptable = manifest.epoch == my_epoch - 1 and manifest.batches == recorded_digest
    return Standing.ADOPTABLE if adoptable else Standing.FOREIGN


def set_aside(folder: Path) -> Path:
    """Take a folder out of the way without deleting what a person may want to look at."""
    target = folder.with_name(f"{folder.name}{SET_ASIDE}")
    shutil.rmtree(target, ignore_errors=True)
    folder.rename(target)
    return target


def oldest_kept_step(existing: list[Version], keep: int) -> int:
    """Where the oldest of the newest `keep` checkpoints stands.

    The initial weights, which can always be had again, count as a checkpoint at step 0.
    """
    newest = sorted(existing, reverse=True)[:keep]
    return newest[-1].step if len(newest) == keep else 0


def prune(root: Path, keep: int) -> list[str]:
    """Delete all but the newest `keep` checkpoints, and what was set aside before them; the names."""
    gone = [root / str(version) for version in versions(root)[keep:]]
    kept = versions(root)[:keep]
    for path in root.glob(f"*{SET_ASIDE}"):
        version = Version.parse(path.name.removesuffix(SET_ASIDE))
        if len(kept) == keep and version < kept[-1]:
            gone.append(path)
    for path in gone:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in gone]
