"""Snapshot folders as the trainer writes them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.wire.messages import FileEntry, Snapshot, Version

JOB = "sums-1a2b3c"
Write = Callable[..., Snapshot]


@pytest.fixture
def write_snapshot(tmp_path: Path) -> Write:
    """A complete folder under <tmp>/data/snapshots, and the message that announces it."""

    def write(step: int, epoch: int = 1, size: int = 3000) -> Snapshot:
        version = Version(step, epoch)
        folder = tmp_path / "data" / "snapshots" / JOB / str(version)
        folder.mkdir(parents=True)
        contents = {"config.json": b"{}", "model.safetensors": str(version).encode() * size}
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        return Snapshot(
            job=JOB,
            version=version,
            path=f"snapshots/{JOB}/{version}",
            files=[
                FileEntry(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
                for name, content in contents.items()
            ],
        )

    return write
