"""The worker's half of the lease protocol."""

from services.rollout.leases import FAILED_SECONDS, HOLDING_SECONDS, LastAsk, LeaseBook, key_of
from shared.wire.messages import AskLeases, Attempt, Digests, Held, Lease, Sampling


def lease(index: int, *, attempt: int = 1, sample_class: str = "train") -> Lease:
    return Lease(
        sample=f"job/0/{index}", attempt=Attempt(1, attempt), sample_class=sample_class, prefix=[],
        sampling=Sampling(), deadline_seconds=60.0, digests=Digests(),
    )  # fmt: skip


def asked(book: LeaseBook) -> AskLeases:
    return book.ask(worker="w", job="job", version="0.1", slots=4, free_slots=4 - len(book.held), draining=False)


def test_everything_held_is_named_in_every_ask() -> None:
    book = LeaseBook()
    book.grant([lease(0), lease(1)])
    book.progress(key_of(lease(1)), 5)
    assert [(h.sample, h.tokens) for h in asked(book).held] == [("job/0/0", 0), ("job/0/1", 5)]
    assert asked(book).held == asked(book).held


def test_a_report_stays_until_an_ask_that_carried_it_was_answered() -> None:
    book = LeaseBook()
    book.grant([lease(0), lease(1)])
    book.end(key_of(lease(0)))
    lost = asked(book)
    assert [e.sample for e in lost.ended] == ["job/0/0"]
    again = asked(book)
    assert again.ended == lost.ended
    book.end(key_of(lease(1)), "engine died")
    book.confirm(again)
    assert [(e.sample, e.error) for e in asked(book).ended] == [("job/0/1", "engine died")]
    book.confirm(asked(book))
    assert book.empty


def test_an_attempt_ends_once() -> None:
    book = LeaseBook()
    book.grant([lease(0)])
    book.end(key_of(lease(0)), "worker drains", counts=False)
    book.end(key_of(lease(0)), "engine died")
    assert [(e.error, e.counts) for e in asked(book).ended] == [("worker drains", False)]


def test_a_revoked_lease_is_forgotten_and_not_reported() -> None:
    book = LeaseBook()
    book.grant([lease(0), lease(1)])
    gone = book.revoke([Held(sample="job/0/0", attempt=Attempt(1, 1)), Held(sample="job/0/9", attempt=Attempt(1, 1))])
    assert gone == [key_of(lease(0))]
    book.end(gone[0], "too late to matter")
    assert [h.sample for h in asked(book).held] == ["job/0/1"] and not asked(book).ended


def test_a_lease_that_is_granted_twice_is_worked_on_once() -> None:
    book = LeaseBook()
    assert len(book.grant([lease(0)])) == 1
    assert book.grant([lease(0)]) == []
    assert len(book.grant([lease(0, attempt=2)])) == 1


def test_progress_counts_new_tokens_only_and_never_goes_back() -> None:
    book = LeaseBook()
    book.grant([lease(0)])
    key = key_of(lease(0))
    assert [book.progress(key, tokens) for tokens in (16, 32, 32, 16, 40)] == [16, 16, 0, 0, 8]
    assert asked(book).held[0].tokens == 40
    assert book.progress("unknown", 5) == 0


def test_evaluation_is_held_as_long_as_one_of_its_samples_is() -> None:
    book = LeaseBook()
    book.grant([lease(0), lease(1, sample_class="eval")])
    assert book.holds_evaluation
    book.end(key_of(lease(1)))
    assert not book.holds_evaluation


def test_a_full_worker_asks_once_a_second_and_one_with_room_as_the_scheduler_wishes() -> None:
    answered = LastAsk(answered=True, wanted=4, granted=4, waiting=9, hint=0.2)
    assert answered.pause_seconds(free_slots=0) == HOLDING_SECONDS
    assert answered.pause_seconds(free_slots=2) == 0.2
    assert LastAsk(answered=True, hint=60.0).pause_seconds(free_slots=1) == HOLDING_SECONDS
    assert LastAsk(answered=True, hint=0.0).pause_seconds(free_slots=1) > 0
    assert LastAsk(answered=False).pause_seconds(free_slots=0) == FAILED_SECONDS


def test_a_free_slot_is_worth_an_ask_at_once_when_something_waits_for_us() -> None:
    assert LastAsk(answered=True, wanted=4, granted=4, waiting=9).eager
    assert LastAsk(answered=True, wanted=0, granted=0, waiting=9).eager
    assert not LastAsk(answered=True, wanted=4, granted=4, waiting=0).eager
    assert not LastAsk(answered=True, wanted=4, granted=0, waiting=9).eager, "what waits is for someone else"
    assert not LastAsk(answered=False, waiting=9).eager
