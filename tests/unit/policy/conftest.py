from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.policy import resolve_model

Change = Callable[..., Path]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which the tiny models are made."""
    data = tmp_path_factory.mktemp("data")
    for name in ("tiny", "tiny-qwen2"):
        resolve_model(name, data)
    return data


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A model folder of one's own, to break."""
    return Path(shutil.copytree(made / "models" / "tiny", tmp_path / "model"))


@pytest.fixture
def changed(folder: Path) -> Change:
    """That folder with keys of one of its JSON files changed (None: taken out)."""

    def change(name: str, **changes: Any) -> Path:
        path = folder / name
        value = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: v for key, v in value.items() if v is not None}))
        return folder

    return change
