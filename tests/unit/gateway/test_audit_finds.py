"""Whatever single record is taken from, or repeated in, a good ledger: the audit sees it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.audit import Sightings, conclude
from shared.wire import messages as m

HARMLESS_WITHOUT = (m.Requeued, m.GaveUp, m.Retired, m.Ending)
HARMLESS_TWICE = (m.Requeued, m.Trained, m.Retired, m.Ending)  # a step may be trained again, from an older checkpoint


@pytest.fixture
def whole(book, make):
    """A completed job in which everything happened once."""
    book.issue(0, 1, 2, 3, 4, 5)
    book.requeue(make.sample(0, 1))
    book.batch(1, *[make.sample(0, i) for i in range(2)])
    book.batch(2, *[make.sample(1, i) for i in range(2)])
    book.drop(*[make.sample(2, i) for i in range(2)])
    book.train(1, 2)
    book.retire(1, 2)
    book.batch(3, *[make.sample(3, i) for i in range(2)])
    book.give_up(make.sample(4, 0))
    book.die(make.sample(4, 0))
    book.drop(make.sample(4, 1), reason="sibling dead")
    book.train(3, 3, kept=2)
    book.retire(3, 3)
    book.end(3)
    book.drop(*[make.sample(5, i) for i in range(2)], reason="job ended")
    return book


def audit(book):
    return conclude(book.fold(), Sightings(), "completed")


def test_the_whole_ledger_balances(whole):
    found = audit(whole)
    assert found.balanced, found.problems
    assert (found.issued, found.trained, found.dropped, found.dead, found.in_flight) == (12, 6, 5, 1, 0)


def test_no_record_can_be_taken_away_unseen(whole):
    records = whole.records
    for index, (_, record) in enumerate(records):
        whole.records = records[:index] + records[index + 1 :]
        balanced = audit(whole).balanced
        assert balanced == isinstance(record, HARMLESS_WITHOUT), record


def test_no_record_can_be_there_twice_unseen(whole):
    records = whole.records
    for index, (_, record) in enumerate(records):
        whole.records = [*records[: index + 1], *records[index:]]
        balanced = audit(whole).balanced
        assert balanced == isinstance(record, HARMLESS_TWICE), record


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_order_of_honest_work_balances_at_every_moment(make, data):
    """Groups are issued, batched, dropped and trained as chance has it; in no moment is a sample nowhere or twice."""
    book, waiting, batched, step, trained, group = make.Book(), [], [], 0, 0, 0
    for action in data.draw(
        st.lists(st.sampled_from(["issue", "batch", "drop", "train", "requeue", "die"]), max_size=40)
    ):
        if action == "issue":
            book.issue(group)
            waiting.append(group)
            group += 1
        elif action == "batch" and waiting:
            step += 1
            batched.append(waiting.pop(data.draw(st.integers(0, len(waiting) - 1))))
            book.batch(step, *[make.sample(batched[-1], i) for i in range(2)])
        elif action == "drop" and waiting:
            gone = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            book.drop(*[make.sample(gone, i) for i in range(2)])
        elif action == "die" and waiting:
            gone = waiting.pop(0)
            book.give_up(make.sample(gone, 1))
            book.die(make.sample(gone, 1))
            book.drop(make.sample(gone, 0), reason="sibling dead")
        elif action == "requeue" and waiting:
            book.requeue(make.sample(waiting[0], 0))
        elif action == "train" and step > trained:
            book.train(trained + 1, step)
            trained = step
        found = conclude(book.fold(), Sightings(), "running")
        assert found.balanced, found.problems
        assert found.issued == 2 * group == found.trained + found.dropped + found.dead + found.in_flight
        assert found.in_flight == 2 * (len(waiting) + step - trained)
        if step > trained:
            assert not conclude(book.fold(), Sightings(), "completed").balanced
