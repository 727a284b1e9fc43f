from __future__ import annotations

from pathlib import Path

import pytest

from shared.policy import SHIPPED, resolve_model


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with every shipped model in it."""
    folder = tmp_path_factory.mktemp("data")
    for name in SHIPPED:
        resolve_model(name, folder)
    return folder
