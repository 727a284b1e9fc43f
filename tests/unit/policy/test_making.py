from __future__ import annotations

import threading
from pathlib import Path

import pytest

from shared.policy.making import make_once


def test_a_maker_that_fails_leaves_no_folder_and_the_next_one_starts_anew(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        make_once(tmp_path, "m", fail)
    assert not (tmp_path / "m").exists()
    made = make_once(tmp_path, "m", lambda folder: (folder / "whole").touch())
    assert [path.name for path in made.iterdir()] == ["whole"]


def test_of_many_makers_at_once_one_makes(tmp_path: Path) -> None:
    made: list[int] = []
    start = threading.Barrier(8)

    def make(folder: Path) -> None:
        made.append(1)
        (folder / "file").touch()

    def work() -> None:
        start.wait()
        assert (make_once(tmp_path, "m", make) / "file").is_file()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
