from __future__ import annotations

import pytest

from services.scheduler.admission import Plan, admissible, data_ended, last_step
from shared.wire.messages import Dropped, Ending


@pytest.mark.parametrize(("staleness", "expected"), [(0, 3), (1, 6), (2, 9)])
def test_at_the_start_it_admits_what_staleness_allows_in_one_go(read, staleness, expected) -> None:
    assert admissible(read(), Plan(groups_per_step=3, staleness=staleness, steps=10), applied_step=0) == expected


def test_nothing_more_is_admitted_until_a_worker_has_applied_the_version_made_from_a_batch(records, read) -> None:
    plan = Plan(groups_per_step=2, staleness=0, steps=10)
    view = read(records.issued(0), records.issued(1), records.batched(1, [0, 1]))
    assert admissible(view, plan, applied_step=0) == 0
    assert admissible(view, plan, applied_step=1) == 2


def test_a_dropped_group_is_replaced_even_near_the_end(records, read) -> None:
    plan = Plan(groups_per_step=2, staleness=3, steps=1)
    view = read(records.issued(0), records.issued(1))
    assert admissible(view, plan, 0) == 0
    read(Dropped(epoch=1, samples=records.ids(1), reason="stale"), view=view)
    assert admissible(view, plan, 0) == 1


def test_no_more_than_the_remaining_steps_need(read) -> None:
    assert admissible(read(), Plan(groups_per_step=2, staleness=9, steps=3), 0) == 6


def test_no_more_than_the_data_has(read) -> None:
    assert admissible(read(), Plan(groups_per_step=2, staleness=9, steps=9, groups_available=5), 0) == 5


def test_nothing_after_an_early_end(read) -> None:
    view = read(Ending(epoch=1, last_step=0, reason="goal"))
    plan = Plan(groups_per_step=2, staleness=1, steps=9)
    assert admissible(view, plan, 0) == 0
    assert last_step(view, plan) == 0


def test_the_data_ends_when_what_is_open_cannot_fill_another_batch(records, read) -> None:
    plan = Plan(groups_per_step=2, staleness=9, steps=9, groups_available=3)
    view = read(*(records.issued(group) for group in range(3)))
    assert not data_ended(view, plan)
    read(records.batched(1, [0, 2]), view=view)
    assert data_ended(view, plan)
    assert not data_ended(view, Plan(groups_per_step=2, staleness=9, steps=9))


def test_a_drop_can_end_the_data_too(records, read) -> None:
    plan = Plan(groups_per_step=2, staleness=9, steps=9, groups_available=2)
    view = read(records.issued(0), records.issued(1))
    assert not data_ended(view, plan)
    read(Dropped(epoch=1, samples=records.ids(1), reason="stale"), view=view)
    assert data_ended(view, plan)


def test_training_is_held_back_where_an_evaluation_is_awaited(records, read) -> None:
    plan = Plan(groups_per_step=2, staleness=3, steps=9)
    view = read(records.issued(0), records.issued(1), records.batched(1, [0, 1]))
    assert admissible(view, plan, 1, up_to_step=1) == 0
    assert admissible(view, plan, 1, up_to_step=2) == 2
    assert admissible(view, plan, 1) == 8
