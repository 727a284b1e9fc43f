"""The model that a job has made so far: the newest checkpoint that the ledger calls trained, as files to fetch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import ApiError
from shared.wire import topics
from shared.wire.bus.api import Bus, NotFound
from shared.wire.messages import BadMessage, FileEntry, Trained, Version, decode_record

MODEL_FOLDER = "model"


@dataclass(frozen=True)
class Checkpoint:
    version: Version
    folder: Path
    files: list[FileEntry]


async def newest_trained(bus: Bus, job: str) -> Trained | None:
    """The last `trained` record: its checkpoint has read back whole."""
    found = None
    try:
        async for stored in bus.follow(
            topics.ledger(job).name, subject=topics.ledger_subject(job, "trainer"), live=False
        ):
            record = decode_record(stored.data)
            if isinstance(record, Trained):
                found = record
    except NotFound:
        return None
    return found


async def newest_checkpoint(bus: Bus, data_dir: Path, job: str) -> Checkpoint:
    """The newest durable checkpoint's model folder."""
    trained = await newest_trained(bus, job)
    if trained is None:
        raise ApiError(409, f"{job} has no checkpoint yet: the first comes with its `checkpoint.every`-th step")
    return read_checkpoint(data_dir, job, Path(trained.checkpoint).name)


def read_checkpoint(data_dir: Path, job: str, name: str) -> Checkpoint:
    """The checkpoint `step.epoch` of a job, with what its manifest says of the model's files."""
    try:
        version = Version.parse(name)
    except BadMessage as error:
        raise ApiError(422, str(error), [("checkpoint", str(error))]) from error
    root = data_dir / "checkpoints" / topics.checked(job) / str(version)
    folder = root / MODEL_FOLDER
    if not folder.is_dir():
        raise ApiError(404, f"{folder} is not here: pruned meanwhile, or the trainer's data folder is another one")
    digests = manifest_digests(root / "manifest.json")
    files = [
        FileEntry(name=path.name, size=path.stat().st_size, sha256=digests.get(path.name, ""))
        for path in sorted(folder.iterdir())
        if path.is_file()
    ]
    return Checkpoint(version, folder, files)


def manifest_digests(path: Path) -> dict[str, str]:
    """sha256 by file name, from the manifest's list of the model's files; empty where it cannot be read."""
    try:
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    files = manifest.get("files", {}) if isinstance(manifest, dict) else {}
    if isinstance(files, list):
        files = {entry["name"]: entry["sha256"] for entry in files if isinstance(entry, dict) and "sha256" in entry}
    prefix = f"{MODEL_FOLDER}/"
    return {name.removeprefix(prefix): str(digest) for name, digest in files.items() if name.startswith(prefix)}
