"""What a ledger must look like, and what the audit says when it does not."""

from gateway.ledger_fold import Place
from shared.wire import messages as m


def kinds(fold):
    return [problem.kind for problem in fold.problems]


def test_a_whole_job_balances(book, make):
    ids = [make.sample(g, i) for g in range(4) for i in range(2)]
    book.issue(0, 1, 2, 3)
    book.requeue(ids[4])
    book.batch(1, *ids[0:2])
    book.drop(*ids[2:4])
    book.batch(2, *ids[4:6], oldest=0)
    book.train(1, 2)
    book.retire(1, 2)
    book.give_up(ids[6])
    book.die(ids[6])
    book.drop(ids[7], reason="sibling dead")
    fold = book.fold()
    assert fold.problems == []
    assert fold.issued == 8
    assert {place: n for place, n in fold.counts.items() if n} == {Place.TRAINED: 4, Place.DROPPED: 3, Place.DEAD: 1}
    assert fold.dropped_reasons == {"stale": 2, "sibling dead": 1}
    assert fold.ages == {0: 20, 1: 20}
    assert list(fold.open_samples()) == []


def test_what_is_not_settled_is_in_flight(book, make):
    book.issue(0, 1, 2)
    book.batch(1, make.sample(0, 0), make.sample(0, 1))
    book.give_up(make.sample(1, 0))
    fold = book.fold()
    assert fold.problems == []
    assert fold.counts == {Place.BATCHED: 2, Place.GAVE_UP: 1, Place.WAITING: 3}


def test_an_id_in_two_batches_is_named(book, make):
    book.issue(0, 1)
    book.batch(1, make.sample(0, 0), make.sample(0, 1))
    book.batch(2, make.sample(0, 0), make.sample(1, 0))
    fold = book.fold()
    assert kinds(fold) == ["doubled"]
    assert fold.problems[0].samples == [make.sample(0, 0)]
    assert "step 2" in fold.problems[0].message


def test_an_id_batched_again_after_its_group_was_settled_is_named(book, make):
    book.issue(0, 1)
    book.batch(1, make.sample(0, 0), make.sample(0, 1))
    book.train(1, 1, kept=1)
    book.batch(2, make.sample(0, 1), make.sample(1, 0))
    fold = book.fold()
    assert kinds(fold) == ["doubled"]
    assert fold.problems[0].samples == [make.sample(0, 1)]


def test_an_id_twice_in_one_batch_is_named(book, make):
    book.issue(0)
    book.batch(1, make.sample(0, 0), make.sample(0, 0))
    assert kinds(book.fold()) == ["doubled"]


def test_an_id_dropped_after_it_was_trained_is_named(book, make):
    book.issue(0)
    book.batch(1, make.sample(0, 0), make.sample(0, 1))
    book.train(1, 1)
    book.drop(make.sample(0, 0))
    assert kinds(book.fold()) == ["doubled"]


def test_a_batch_that_will_never_be_trained_may_be_dropped_but_not_trained_then(book, make):
    ids = make.sample(0, 0), make.sample(0, 1)
    book.issue(0)
    book.batch(1, *ids)
    book.drop(*ids, reason="job ended")
    assert book.fold().problems == []
    book.train(1, 1)
    assert kinds(book.fold()) == ["doubled"]


def test_a_sample_that_was_never_issued_is_named(book, make):
    book.issue(0)
    book.batch(1, make.sample(0, 0), make.sample(7, 0), make.sample(0, 9), "nonsense", "other-1a2b3c/0/0")
    fold = book.fold()
    assert kinds(fold) == ["unknown"] * 4
    assert fold.counts[Place.BATCHED] == 1


def test_a_group_issued_twice_or_out_of_order_is_named(book):
    book.issue(0, 0, 2)
    assert kinds(book.fold()) == ["doubled", "gap"]


def test_a_sample_over_the_staleness_bound_is_named(book, make):
    book.issue(0, 1)
    book.batch(1, make.sample(0, 0), make.sample(0, 1))
    book.batch(2, make.sample(1, 0), make.sample(1, 1), oldest=0)
    assert kinds(book.fold(staleness=1)) == []
    fold = book.fold(staleness=0)
    assert kinds(fold) == ["over age"]
    assert fold.problems[0].samples == [make.sample(1, 0), make.sample(1, 1)]


def test_a_sample_newer_than_the_version_it_trains_is_named(book, make):
    book.issue(0)
    book.batch(1, make.sample(0, 0), make.sample(0, 1), oldest=5)
    assert kinds(book.fold()) == ["over age"]


def test_a_demonstration_has_no_age(book, make):
    book.issue(0)
    book.batch(1, make.sample(0, 0), make.sample(0, 1), oldest=-1)
    fold = book.fold(staleness=0)
    assert fold.problems == []
    assert fold.ages == {}


def test_trained_steps_without_a_digest_are_named(book, make):
    book.issue(0)
    book.batch(1, make.sample(0, 0), make.sample(0, 1))
    book.train(1, 1, digest="")
    fold = book.fold()
    assert kinds(fold) == ["digest"]
    assert "1.1" in fold.problems[0].message


def test_a_checkpoint_made_from_other_batches_is_named(book, make):
    book.issue(0)
    book.batch(1, make.sample(0, 0), make.sample(0, 1))
    book.train(1, 1, digest="0" * 64)
    assert kinds(book.fold()) == ["digest"]


def test_steps_trained_again_from_an_older_checkpoint_count_once(book, make):
    book.issue(0, 1)
    book.batch(1, make.sample(0, 0), make.sample(0, 1))
    book.train(1, 1)
    book.batch(2, make.sample(1, 0), make.sample(1, 1))
    book.train(2, 2)
    book.open("trainer")
    book.train(2, 2)
    fold = book.fold()
    assert fold.problems == []
    assert fold.counts[Place.TRAINED] == 4


def test_a_step_skipped_batched_twice_or_trained_without_a_batch_is_named(book, make):
    book.issue(0, 1, 2)
    book.batch(1, make.sample(0, 0))
    book.batch(3, make.sample(1, 0))
    book.batch(3, make.sample(1, 1))
    book.train(4, 4)
    assert kinds(book.fold()) == ["step", "step", "step", "step", "digest"]


def test_a_batch_beyond_the_last_step_is_named(book, make):
    book.issue(0)
    book.end(0)
    book.batch(1, make.sample(0, 0))
    assert kinds(book.fold()) == ["step"]


def test_steps_retired_before_they_are_trained_are_named(book, make):
    book.issue(0)
    book.batch(1, make.sample(0, 0))
    book.retire(1, 1)
    assert kinds(book.fold()) == ["step"]


def test_a_drop_without_a_reason_is_named(book, make):
    book.issue(0)
    book.drop(make.sample(0, 0), reason="")
    assert kinds(book.fold()) == ["reason"]


def test_a_missing_record_is_named(book):
    fold = book.fold()
    fold.apply(9, m.Issued(epoch=1, group=0, row=0, row_digest="", n=1, version_step=0))
    assert kinds(fold) == ["gap"]


def test_a_record_of_a_fenced_holder_is_named(book):
    book.open("scheduler")
    book.epochs["scheduler"] = 1
    book.issue(0)
    assert kinds(book.fold()) == ["fenced"]


def test_an_epoch_that_skips_one_is_named(book):
    book.epochs["trainer"] = 5
    book.open("trainer")
    assert kinds(book.fold()) == ["epoch"]


def test_a_long_job_is_folded_in_little_memory(book, make):
    for step in range(1, 2001):
        group = step - 1
        book.issue(group)
        book.batch(step, make.sample(group, 0), make.sample(group, 1))
        if step % 10 == 0:
            book.train(step - 9, step, kept=step - 10)
            book.retire(step - 9, step)
    fold = book.fold()
    assert fold.problems == []
    assert fold.counts[Place.TRAINED] == 4000
    assert len(fold.batches) == 10
    assert list(fold._closed) == [(0, 1999)]
    assert not fold._open


def test_only_the_first_problems_are_kept_but_all_are_counted(book):
    for _ in range(1000):
        book.drop("nonsense")
    fold = book.fold()
    assert fold.problem_count == 1000
    assert len(fold.problems) == 200
