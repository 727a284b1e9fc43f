from __future__ import annotations

import pytest

from services.scheduler.ledger_view import BadLedger, LedgerView
from shared.wire.messages import (
    Attempt,
    Dead,
    Dropped,
    Ending,
    EpochOpened,
    GaveUp,
    Requeued,
    Retired,
    Trained,
)


def test_a_group_leaves_the_system_when_a_version_made_from_its_batch_is_applied(records, read) -> None:
    view = read(*(records.issued(group) for group in range(4)), records.batched(1, [0, 1]))
    assert view.in_system(applied_step=0) == 4
    assert view.in_system(applied_step=1) == 2
    assert view.in_system(applied_step=9) == 2


def test_a_dropped_group_leaves_the_system_at_once_and_only_when_all_its_samples_are_settled(records, read) -> None:
    view = read(records.issued(0), records.issued(1))
    read(Dead(epoch=1, samples=["j/0/1"], errors=["engine died"]), view=view)
    assert view.in_system(0) == 2
    read(Dropped(epoch=1, samples=["j/0/0"], reason="sibling dead"), view=view)
    assert (view.in_system(0), view.gone, view.died, view.newest_error) == (1, 1, 1, "engine died")


def test_settled_is_trained_and_retired_or_dropped_or_dead(records, read) -> None:
    view = read(*(records.issued(group) for group in range(3)), records.batched(1, [0, 2]))
    assert view.unsettled_groups == 3
    read(Trained(epoch=1, first=1, last=1, digest="", checkpoint="1.1", oldest_kept_step=0), view=view)
    assert view.unsettled_groups == 3
    read(Retired(epoch=1, first=1, last=1), view=view)
    assert view.unsettled_groups == 1
    read(Dropped(epoch=1, samples=records.ids(1), reason="job ended"), view=view)
    assert (view.unsettled_groups, view.settled.low, view.settled.pieces) == (0, 3, 0)


def test_a_batched_group_that_is_dropped_with_its_job_is_settled_and_not_replaced(records, read) -> None:
    view = read(
        records.issued(0), records.batched(1, [0]), Dropped(epoch=1, samples=records.ids(0), reason="job ended")
    )
    assert (view.unsettled_groups, view.gone) == (0, 0)


def test_what_failed_before_is_known_after_a_restart(records, read) -> None:
    view = read(
        records.issued(0),
        Requeued(epoch=1, sample="j/0/1", attempt=Attempt(1, 3), reason="engine died", worker="w"),
        Requeued(epoch=1, sample="j/0/1", attempt=Attempt(1, 4), reason="worker draining", worker="w", counts=False),
    )
    history = view.history(0, 1)
    assert (history.failures, history.returns) == (1, 1)
    assert history.tries == ["1.3: engine died", "1.4: worker draining"]
    assert view.wants(0, 1)
    read(GaveUp(epoch=1, sample="j/0/1", error="engine died", attempts=[]), view=view)
    assert not view.wants(0, 1)
    assert view.wants(0, 0)


def test_a_sample_of_a_batched_or_unknown_group_is_not_wanted(records, read) -> None:
    view = read(records.issued(0), records.batched(1, [0]))
    assert not view.wants(0, 0)
    assert not view.wants(7, 0)


def test_the_rest_of_the_ledger_is_read_too(read, records) -> None:
    view = read(
        EpochOpened(epoch=1, role="scheduler", holder="s"),
        records.issued(0, version_step=3),
        Ending(epoch=1, last_step=4, reason="data ended"),
    )
    assert (view.applied_floor, view.ending.last_step, view.records) == (3, 4, 3)


@pytest.mark.parametrize(
    ("group", "step"),
    [(2, None), (0, None), (None, 2), (None, 0)],
    ids=["a gap in groups", "a group twice", "a gap in steps", "a step before the first"],
)
def test_records_that_contradict_each_other_are_an_error_with_the_sequence(records, read, group, step) -> None:
    view = read(records.issued(0))
    wrong = records.issued(group) if group is not None else records.batched(step, [0])
    with pytest.raises(BadLedger, match="record 2 "):
        read(wrong, view=view)


def test_settling_what_was_never_issued_is_an_error(read) -> None:
    with pytest.raises(BadLedger, match="j/3/0"):
        read(Dropped(epoch=1, samples=["j/3/0"], reason="stale"))


def test_memory_follows_what_is_in_flight_not_what_has_been(records) -> None:
    view = LedgerView()
    for step in range(1, 2001):
        group = step - 1
        view.apply(view.records + 1, records.issued(group))
        view.apply(view.records + 1, records.batched(step, [group]))
        if step % 10 == 0:
            view.apply(
                view.records + 1,
                Trained(epoch=1, first=step - 9, last=step, digest="", checkpoint="", oldest_kept_step=0),
            )
            view.apply(view.records + 1, Retired(epoch=1, first=step - 9, last=step))
    assert (len(view.open), len(view._batched_groups), len(view._by_step), view.settled.pieces) == (0, 0, 0, 0)
    assert view.settled.low == 2000
