"""The trained model over HTTP: which checkpoint, which files, and nothing beside them."""

import asyncio
import json

import pytest

from shared.wire.jobs import create_job


@pytest.fixture
def checkpointed(make, book, tmp_path):
    """A data folder with two checkpoints, of which the ledger calls 2.1 trained."""
    for version in ("2.1", "4.1"):
        folder = tmp_path / "checkpoints" / make.JOB / version
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "config.json").write_text("{}")
        (folder / "model" / "model.safetensors").write_bytes(b"w" * 1000)
        (folder / "trainer.pt").write_bytes(b"secret")
        (folder / "manifest.json").write_text(json.dumps({"files": {"model/config.json": "abc", "trainer.pt": "def"}}))
    book.issue(0)
    book.batch(1, make.sample(0, 0))
    book.batch(2, make.sample(0, 1))
    book.train(1, 2)
    book.open("trainer")
    return tmp_path


def get(make, book, data_dir, *paths):
    async def scenario():
        bus = await make.new_bus(make.JOB)
        await create_job(bus, make.job_record())
        await book.publish(bus)
        async with make.http_gateway(bus=bus, data_dir=data_dir) as (http, _, _):
            return [await http.get(f"/v1/jobs/{make.JOB}/files{path}") for path in paths]

    return asyncio.run(scenario())


def test_the_newest_trained_checkpoint_is_listed_not_the_newest_folder(make, book, checkpointed):
    listing, weights, older = get(make, book, checkpointed, "", "/2.1/model.safetensors", "?checkpoint=4.1")
    assert listing.json() == {
        "job": make.JOB,
        "checkpoint": "2.1",
        "step": 2,
        "files": [
            {"name": "config.json", "size": 2, "sha256": "abc"},
            {"name": "model.safetensors", "size": 1000, "sha256": ""},
        ],
    }
    assert weights.content == b"w" * 1000
    assert older.json()["step"] == 4


@pytest.mark.parametrize(
    "path", ["/2.1/trainer.pt", "/2.1/..%2Ftrainer.pt", "/2.1/%2Fetc%2Fpasswd", "/2.1/absent", "/9.9/config.json"]
)
def test_no_other_file_is_given(make, book, checkpointed, path):
    (reply,) = get(make, book, checkpointed, path)
    assert reply.status_code == 404


@pytest.mark.parametrize("path", ["/../config.json", "?checkpoint=..", "?checkpoint=2.1%2F..%2F4.1", "/x/config.json"])
def test_a_checkpoint_is_a_step_and_an_epoch(make, book, checkpointed, path):
    (reply,) = get(make, book, checkpointed, path)
    assert reply.status_code in (404, 422)


def test_before_the_first_checkpoint_there_is_a_reason_instead(make, tmp_path):
    (reply,) = get(make, make.Book(), tmp_path, "")
    assert reply.status_code == 409
    assert "no checkpoint yet" in reply.json()["error"]


def test_a_gateway_on_another_data_folder_says_so(make, book, checkpointed, tmp_path):
    (reply,) = get(make, book, tmp_path / "elsewhere", "")
    assert reply.status_code == 404
    assert "elsewhere" in reply.json()["error"]
