"""The list of all jobs in memory."""

import pytest

from gateway.errors import ApiError
from gateway.index import JobIndex
from shared.wire.bus.api import Entry
from shared.wire.messages import encode


@pytest.fixture
def index(make):
    """Ten thousand jobs, created one a second."""
    index = JobIndex()
    for number in range(10_000):
        state = "running" if number % 100 == 0 else "completed"
        record = make.job_record(f"sums-{number:06x}", state=state, created_at=float(number))
        index.apply(Entry(record.id, encode(record), number + 1))
    return index


def pages(index, limit, **filters):
    cursor = None
    while True:
        found, cursor = index.page(limit, cursor, **filters)
        yield found
        if cursor is None:
            return


def test_pages_give_every_job_once_newest_first(index):
    ids = [record.id for page in pages(index, 500) for record in page]
    assert ids == [f"sums-{number:06x}" for number in reversed(range(10_000))]


def test_a_page_is_bounded_and_the_last_one_has_no_cursor(index):
    sizes = [len(page) for page in pages(index, 300)]
    assert sizes == [300] * 33 + [100]


def test_a_filter_finds_jobs_wherever_they_are(index):
    running = [record.id for page in pages(index, 30, state="running") for record in page]
    assert running == [f"sums-{number:06x}" for number in reversed(range(0, 10_000, 100))]


def test_a_job_that_is_deleted_or_made_between_two_pages_moves_no_other(index, make):
    first, cursor = index.page(10)
    index.apply(Entry(first[-1].id, None, 1))
    new = make.job_record("sums-ffffff", created_at=1e9)
    index.apply(Entry(new.id, encode(new), 2))
    second, _ = index.page(10, cursor)
    assert [record.id for record in second] == [f"sums-{number:06x}" for number in range(9_989, 9_979, -1)]


def test_a_changed_job_keeps_its_place(index, make):
    changed = make.job_record("sums-000005", state="failed", created_at=5.0)
    index.apply(Entry(changed.id, encode(changed), 9))
    assert len(index) == 10_000
    assert index.states() == {"running": 100, "completed": 9_899, "failed": 1}


def test_a_cursor_that_nobody_gave_is_refused(index):
    for cursor in ("x", "", "1.0", "nan_sums-000001", "1.0_Ä"):
        with pytest.raises(ApiError, match="cursor"):
            index.page(10, cursor)


def test_a_job_is_found_by_id_by_name_and_by_its_beginning(make):
    index = JobIndex()
    for id, at in (("sums-aaaaaa", 1.0), ("sums-bbbbbb", 2.0), ("words-cccccc", 3.0)):
        index.apply(Entry(id, encode(make.job_record(id, created_at=at)), 1))
    assert index.resolve("sums-aaaaaa") == "sums-aaaaaa"
    assert index.resolve("sums") == "sums-bbbbbb"
    assert index.resolve("sums-a") == "sums-aaaaaa"
    assert index.resolve("w") == "words-cccccc"
    with pytest.raises(ApiError, match="begins 2 job ids: sums-aaaaaa, sums-bbbbbb"):
        index.resolve("s")
    for unknown in ("other", ""):
        with pytest.raises(ApiError, match="no job"):
            index.resolve(unknown)


def test_a_record_of_another_release_is_set_aside(make):
    index = JobIndex()
    index.apply(Entry("odd", b"\xc1", 1))
    assert len(index) == 0
