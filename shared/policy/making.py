"""Make a model folder once, whatever dies and however many try at once.

The folder is written aside and renamed, so a folder that exists is whole. A lock file keeps two makers apart; the
kernel frees it with its holder, so a killed maker leaves only its unfinished folder, which the next one removes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.policy.errors import ModelError


def make_once(models: Path, name: str, make: Callable[[Path], None]) -> Path:
    """`models/name`, made by `make(empty folder)` unless it is there already. Waits for another maker."""
    target, unfinished = models / name, models / f".{name}.unfinished"
    if target.is_dir():
        return target
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models / f".{name}.lock"):
            if not target.is_dir():
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                make(unfinished)
                for path in unfinished.iterdir():
                    _sync(path)
                unfinished.rename(target)
                _sync(models)
    except OSError as error:
        raise ModelError(f"cannot write model {name} to {target}: {error.strerror or error}") from error
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
