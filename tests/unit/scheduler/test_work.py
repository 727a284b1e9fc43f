from __future__ import annotations

import pytest

from services.scheduler.work import Work
from shared.wire.messages import SampleKey


@pytest.fixture
def work() -> Work:
    found = Work(lambda group, index: SampleKey("j", group, index))
    found.open(0, 2)
    found.open(1, 2)
    return found


def waiting(work: Work) -> list[str]:
    return [candidate.key.id for candidate in work.waiting()]


def test_a_sample_is_in_one_place_at_a_time(work) -> None:
    key = SampleKey("j", 0, 1)
    work.lease(key)
    assert waiting(work) == ["j/0/0", "j/1/0", "j/1/1"]
    assert (work.num_waiting, work.num_leased, work.num_finished) == (3, 1, 0)
    work.put_back(key, not_before=4.0)
    assert [(c.key.id, c.not_before) for c in work.waiting()][1] == ("j/0/1", 4.0)
    assert work.finish(key, 1.0)
    assert not work.finish(key, 2.0)
    assert (work.num_waiting, work.num_leased, work.num_finished) == (3, 0, 1)


def test_a_sample_that_was_out_once_is_doubtful_for_ever(work) -> None:
    key = SampleKey("j", 0, 0)
    assert not work.is_doubtful(key)
    work.lease(key)
    work.put_back(key)
    assert work.doubtful() == [key]


def test_after_a_restart_everything_is_doubtful() -> None:
    work = Work(lambda group, index: SampleKey("j", group, index))
    work.open(3, 2, doubtful=True, not_before=9.0)
    assert len(work.doubtful()) == 2
    assert [candidate.not_before for candidate in work.waiting()] == [9.0, 9.0]


def test_what_was_said_to_be_finished_and_is_nowhere_waits_again(work) -> None:
    key = SampleKey("j", 1, 0)
    work.finish(key, 1.0)
    assert work.finished_before(2.0) == [key]
    work.confirm(key, 5.0)
    assert work.finished_before(2.0) == []
    work.unfinish(key)
    assert work.is_waiting(key)


def test_closed_groups_want_nothing_and_late_news_of_them_is_harmless(work) -> None:
    key = SampleKey("j", 0, 0)
    work.keep_only([1])
    assert not work.wants(key)
    work.put_back(key)
    work.lose(key)
    assert not work.finish(key, 0.0)
    assert waiting(work) == ["j/1/0", "j/1/1"]


def test_a_lost_sample_waits_no_more(work) -> None:
    work.lose(SampleKey("j", 0, 0))
    assert waiting(work) == ["j/0/1", "j/1/0", "j/1/1"]
    assert (work.num_lost, work.num_left) == (1, 3)


def test_an_index_beyond_the_group_is_not_wanted(work) -> None:
    assert not work.wants(SampleKey("j", 0, 2))
