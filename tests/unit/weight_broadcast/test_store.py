"""Where versions lie: checked when they come in, found again after a restart, gone when they should be."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from services.weight_broadcast import store as store_module
from services.weight_broadcast.folders import BadSnapshot
from services.weight_broadcast.store import Store
from shared.wire.messages import BadMessage, FileEntry, Snapshot, Version

JOB = "sums-1a2b3c"
V = Version
Write = Callable[..., Snapshot]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@pytest.fixture
def store(tmp_path: Path, shared: Path) -> Store:
    return Store(tmp_path / "data", shared)


def test_a_snapshot_is_copied_to_shared_memory_with_its_file_list_beside_it(
    store: Store, shared: Path, write_snapshot: Write
) -> None:
    snapshot = write_snapshot(3)
    place = store.admit(snapshot)
    assert place.is_relative_to(shared) and place.name == "3.1"
    assert sorted(path.name for path in place.iterdir()) == ["config.json", "model.safetensors"]
    assert (place / "model.safetensors").read_bytes() == b"3.1" * 3000
    listed = msgspec.json.decode((place.parent / "3.1.json").read_bytes(), type=list[FileEntry])
    assert listed == snapshot.files == store.file_list(JOB, V(3, 1))
    assert store.versions(JOB) == {V(3, 1)}


def test_without_shared_memory_the_snapshot_itself_is_served(tmp_path: Path, write_snapshot: Write) -> None:
    store = Store(tmp_path / "data", None)
    place = store.admit(write_snapshot(3))
    assert place == tmp_path / "data" / "snapshots" / JOB / "3.1"
    assert (place.parent / "3.1.json").exists()
    assert store.versions(JOB) == {V(3, 1)}


def test_where_there_is_no_room_the_snapshot_itself_is_served(
    store: Store, write_snapshot: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("no shared memory here")
    monkeypatch.setattr(store_module, "ROOM_FACTOR", 1e12)
    store = Store(tmp_path / "data", memory / f"slipstream-test-{tmp_path.name}")
    try:
        assert store.admit(write_snapshot(3)) == tmp_path / "data" / "snapshots" / JOB / "3.1"
    finally:
        shutil.rmtree(memory / f"slipstream-test-{tmp_path.name}", ignore_errors=True)


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "config.json").write_bytes(b"[]"), "not the file that was announced"),
        (lambda folder: (folder / "config.json").write_bytes(b"{} "), "has 3 bytes, 2 were announced"),
        (lambda folder: shutil.rmtree(folder), "is missing"),
        (
            lambda folder: ((folder / "config.json").unlink(), (folder / "config.json").symlink_to("/etc/hostname")),
            "cannot be read",
        ),
    ],
)
@pytest.mark.parametrize("copies", [True, False])
def test_a_snapshot_that_is_not_what_was_announced_is_refused_and_nothing_of_it_is_left(
    tmp_path: Path, shared: Path, write_snapshot: Write, harm: Callable[[Path], object], why: str, copies: bool
) -> None:
    store = Store(tmp_path / "data", shared if copies else None)
    snapshot = write_snapshot(3)
    harm(tmp_path / "data" / snapshot.path)
    with pytest.raises(BadSnapshot, match=why):
        store.admit(snapshot)
    assert store.versions(JOB) == set()
    assert not any(path.is_file() for path in shared.rglob("*"))


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", ".hidden", "..", "x\n"])
def test_a_name_that_is_not_plain_is_refused(store: Store, write_snapshot: Write, name: str) -> None:
    snapshot = write_snapshot(3)
    files = [msgspec.structs.replace(snapshot.files[0], name=name)]
    with pytest.raises(BadSnapshot, match="not a plain file name"):
        store.admit(msgspec.structs.replace(snapshot, files=files))


@pytest.mark.parametrize("path", ["/etc", "snapshots/other/3.1", "../data2/snapshots/sums-1a2b3c/3.1", ""])
def test_a_path_elsewhere_is_refused(store: Store, write_snapshot: Write, path: str) -> None:
    with pytest.raises(BadSnapshot, match="its path"):
        store.admit(msgspec.structs.replace(write_snapshot(3), path=path))


def test_a_new_process_finds_the_versions_and_makes_lost_copies_again_at_the_same_place(
    tmp_path: Path, shared: Path, write_snapshot: Write
) -> None:
    places = [Store(tmp_path / "data", shared).admit(write_snapshot(step)) for step in (1, 2)]
    shutil.rmtree(places[0])
    again = Store(tmp_path / "data", shared)
    assert again.versions(JOB) == {V(1, 1), V(2, 1)}
    assert all(again.restore(JOB, V(step, 1)) for step in (1, 2))
    assert [again.folder(JOB, V(step, 1)) for step in (1, 2)] == places
    shutil.rmtree(shared)
    assert again.restore(JOB, V(1, 1)) and again.folder(JOB, V(1, 1)) == places[0]


def test_a_version_whose_files_are_gone_everywhere_is_not_here(
    store: Store, shared: Path, write_snapshot: Write
) -> None:
    snapshot = write_snapshot(1)
    store.admit(snapshot)
    shutil.rmtree(shared)
    shutil.rmtree(shared.parent / "data" / snapshot.path)
    assert store.versions(JOB) == set()
    assert not store.restore(JOB, V(1, 1), snapshot.files)


def test_removing_a_version_takes_its_files_at_both_places(store: Store, tmp_path: Path, write_snapshot: Write) -> None:
    store.admit(write_snapshot(1))
    store.admit(write_snapshot(2))
    store.remove(JOB, V(1, 1))
    assert store.versions(JOB) == {V(2, 1)}
    assert not list(tmp_path.rglob("1.1*"))


def test_folders_that_were_never_announced_go_once_a_later_version_is_and_later_ones_stay(
    store: Store, tmp_path: Path, write_snapshot: Write
) -> None:
    for step in (1, 2, 3, 9):
        write_snapshot(step)
    store.admit(write_snapshot(4))
    (tmp_path / "data" / "snapshots" / JOB / "5.1.writing").mkdir()
    for name, age in (("3.1.aa.part", 3600), ("4.1.bb.part", 0)):
        part = tmp_path / "data" / "snapshots" / JOB / name
        part.mkdir()
        os.utime(part, (time.time() - age,) * 2)
    store.clean(JOB, {V(4, 1)}, V(4, 1))
    names = sorted(path.name for path in (tmp_path / "data" / "snapshots" / JOB).iterdir())
    assert names == ["4.1", "4.1.bb.part", "4.1.json", "5.1.writing", "9.1"]


def test_an_ended_job_keeps_its_last_snapshot_and_no_memory_and_a_deleted_one_nothing(
    store: Store, shared: Path, tmp_path: Path, write_snapshot: Write
) -> None:
    for step in (1, 2):
        store.admit(write_snapshot(step))
    store.close(JOB, everything=False)
    assert not any(path.is_file() for path in shared.rglob("*"))
    assert store.versions(JOB) == {V(2, 1)}
    assert store.restore(JOB, V(2, 1)) and not any(path.is_file() for path in shared.rglob("*"))
    store.close(JOB, everything=True)
    assert not (tmp_path / "data" / "snapshots" / JOB).exists()


def test_a_sweep_gives_back_the_memory_of_jobs_that_are_over_and_of_no_other_data_folder(
    tmp_path: Path, shared: Path, write_snapshot: Write
) -> None:
    mine, other = Store(tmp_path / "data", shared), Store(tmp_path / "elsewhere", shared)
    place = mine.admit(write_snapshot(1))
    other.sweep(set())
    mine.sweep({JOB})
    assert place.exists()
    mine.sweep(set())
    assert not place.exists() and mine.versions(JOB) == {V(1, 1)}
    other.clear_copies()
    mine.clear_copies()
    assert list(shared.iterdir()) == []


def test_a_bad_job_name_reaches_no_file(store: Store) -> None:
    with pytest.raises(BadMessage):
        store.close("../..", everything=True)
