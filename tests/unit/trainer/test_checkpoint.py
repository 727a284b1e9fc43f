import errno
import os
from pathlib import Path

import pytest

from services.trainer import folders
from services.trainer.checkpoint import (
    BrokenCheckpoint,
    Manifest,
    Standing,
    oldest_kept_step,
    prune,
    save,
    set_aside,
    standing,
    verify,
    versions,
)
from services.trainer.folders import DiskFull, write_folder
from shared.wire.messages import Trained, Version


def manifest(step: int = 20, epoch: int = 3, first: int = 11) -> Manifest:
    return Manifest(job="j", step=step, epoch=epoch, first=first, batches="abc", ledger_sequence=99)


def fill(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "model.safetensors").write_bytes(b"weights" * 1000)
    (folder / "trainer.pt").write_bytes(b"state" * 100)


def make(root: Path, step: int, epoch: int) -> None:
    save(root, manifest(step, epoch), fill, needs_bytes=10)


def test_a_checkpoint_reads_back_whole(tmp_path):
    folder = save(tmp_path / "c", manifest(), fill, needs_bytes=10)
    assert folder.name == "20.3"
    found = verify(folder)
    assert [f.name for f in found.files] == ["model/model.safetensors", "trainer.pt"]
    assert (found.first, found.step, found.batches, found.ledger_sequence) == (11, 20, "abc", 99)


@pytest.mark.parametrize("name", ["model/model.safetensors", "trainer.pt", "manifest.json"])
@pytest.mark.parametrize("how", ["flip", "cut", "gone"])
def test_damage_anywhere_is_found_and_named(tmp_path, name, how):
    folder = save(tmp_path / "c", manifest(), fill, needs_bytes=10)
    path = folder / name
    data = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    else:
        data[len(data) // 2] ^= 0x55
        path.write_bytes(bytes(data) if how == "flip" else bytes(data[:-3]))
    with pytest.raises(BrokenCheckpoint) as caught:
        verify(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_under_another_name_is_not_trusted(tmp_path):
    folder = save(tmp_path / "c", manifest(), fill, needs_bytes=10)
    with pytest.raises(BrokenCheckpoint, match=r"says that it is 20\.3"):
        verify(folder.rename(folder.with_name("21.3")))


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    def half(folder: Path) -> None:
        fill(folder)
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        save(tmp_path / "c", manifest(), half, needs_bytes=10)
    assert os.listdir(tmp_path / "c") == []


def test_too_little_room_is_said_before_anything_is_written(tmp_path):
    with pytest.raises(DiskFull, match=r"disk full: .*20\.3 needs .* MiB, .* MiB are free"):
        save(tmp_path / "c", manifest(), fill, needs_bytes=10**18)
    assert os.listdir(tmp_path / "c") == []


def test_a_disk_that_fills_up_on_the_way_is_told_from_other_faults(tmp_path, monkeypatch):
    free = iter([10**12, 0])
    real = folders.shutil.disk_usage
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda path: real(path)._replace(free=next(free)))

    def fails(folder: Path) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file data/1")

    with pytest.raises(DiskFull):
        write_folder(tmp_path / "x", fails, needs_bytes=100)


def test_other_faults_of_the_disk_stay_what_they_are(tmp_path):
    def fails(folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output error") as caught:
        write_folder(tmp_path / "x", fails, needs_bytes=100)
    assert not isinstance(caught.value, DiskFull)


def trained(first: int = 11, last: int = 20, digest: str = "abc") -> Trained:
    return Trained(epoch=3, first=first, last=last, digest=digest, checkpoint="20.3", oldest_kept_step=0)


@pytest.mark.parametrize(
    ("record", "digest", "my_epoch", "expected"),
    [
        (trained(), None, 4, Standing.RECORDED),
        (trained(), None, 9, Standing.RECORDED),  # a record is for good
        (trained(digest="other"), "abc", 4, Standing.FOREIGN),
        (None, "abc", 4, Standing.ADOPTABLE),
        (None, "abc", 5, Standing.FOREIGN),  # epoch 4 came between and may have redone the steps
        (None, "other", 4, Standing.FOREIGN),
        (None, None, 4, Standing.FOREIGN),
    ],
)
def test_whom_a_holder_trusts(record, digest, my_epoch, expected):
    assert standing(manifest(), record, digest, my_epoch) is expected


def test_checkpoints_are_listed_newest_first_without_what_is_unfinished_or_aside(tmp_path):
    for step, epoch in [(2, 1), (10, 1), (10, 2)]:
        make(tmp_path, step, epoch)
    (tmp_path / "12.2.writing").mkdir()
    set_aside(tmp_path / "10.2")
    assert [str(v) for v in versions(tmp_path)] == ["10.1", "2.1"]
    assert folders.remove_unfinished(tmp_path) == ["12.2.writing"]


def test_pruning_keeps_the_newest_and_forgets_what_was_set_aside_before_them(tmp_path):
    for step in (2, 4, 6, 8):
        make(tmp_path, step, 1)
    set_aside(tmp_path / "4.1")
    assert sorted(prune(tmp_path, 2)) == ["2.1", "4.1.set-aside"]
    assert sorted(os.listdir(tmp_path)) == ["6.1", "8.1"]


@pytest.mark.parametrize(
    ("steps", "keep", "expected"),
    [([], 2, 0), ([10], 2, 0), ([10, 20], 2, 10), ([10, 20, 30], 2, 20), ([10, 20], 3, 0)],
)
def test_the_initial_weights_count_as_the_oldest_checkpoint(steps, keep, expected):
    assert oldest_kept_step([Version(step, 1) for step in steps], keep) == expected
