from __future__ import annotations

from collections.abc import Iterable

from services.scheduler.leasing import Candidate, Waiting, WorkerView, decide, pins
from shared.wire.messages import SampleKey, Version

V0, V1, V2 = Version(0, 1), Version(1, 1), Version(2, 1)


def worker(name: str = "w", version: Version | None = V1, free: int = 4, slots: int = 4, **rest) -> WorkerView:
    return WorkerView(worker=name, version=version, slots=slots, free_slots=free, **rest)


def samples(groups: Iterable[int], eval_round: int | None = None, not_before: float = 0.0) -> list[Candidate]:
    return [Candidate(SampleKey("j", group, 0, eval_round), not_before) for group in groups]


def ids(grants) -> list[str]:
    return [grant.key.id for grant in grants]


def test_the_oldest_group_goes_first_and_no_worker_gets_more_than_it_asks_for() -> None:
    found = decide([worker(free=2)], Waiting(samples([3, 5, 8]), oldest_step=0), now=0.0)
    assert ids(found) == ["j/3/0", "j/5/0"]


def test_a_worker_whose_version_is_too_old_or_unknown_gets_nothing() -> None:
    waiting = Waiting(samples([0]), oldest_step=1)
    assert not decide([worker(version=V0)], waiting, 0.0)
    assert not decide([worker(version=None)], waiting, 0.0)
    assert decide([worker(version=V1)], waiting, 0.0)


def test_only_the_step_of_a_version_counts_for_its_age() -> None:
    assert decide([worker(version=Version(1, 9))], Waiting(samples([0]), oldest_step=1), 0.0)


def test_evaluation_goes_first_to_workers_at_exactly_its_version_and_the_rest_is_filled_with_training() -> None:
    waiting = Waiting(samples([7]), oldest_step=0, evaluation=samples([0], eval_round=2), evaluated=V1)
    assert ids(decide([worker(version=V1, pinned_to=V1)], waiting, 0.0)) == ["j/eval-2/0/0", "j/7/0"]
    assert ids(decide([worker(version=Version(1, 2))], waiting, 0.0)) == ["j/7/0"]
    assert ids(decide([worker(version=V2)], waiting, 0.0)) == ["j/7/0"]


def test_a_worker_on_its_way_to_another_version_gets_no_training() -> None:
    waiting = Waiting(samples([7]), oldest_step=0, evaluation=samples([0], eval_round=0), evaluated=V0)
    assert not decide([worker(version=V1, pinned_to=V0)], waiting, 0.0)


def test_a_pinned_worker_that_has_fallen_behind_still_evaluates() -> None:
    waiting = Waiting(samples([7]), oldest_step=1, evaluation=samples([0], eval_round=0), evaluated=V0)
    assert ids(decide([worker(version=V0, pinned_to=V0)], waiting, 0.0)) == ["j/eval-0/0/0"]


def test_a_draining_worker_gets_nothing() -> None:
    assert not decide([worker(draining=True)], Waiting(samples([0]), oldest_step=0), 0.0)


def test_a_sample_that_must_be_left_alone_is_passed_over_until_its_time() -> None:
    waiting = Waiting([*samples([0], not_before=5.0), *samples([1])], oldest_step=0)
    assert ids(decide([worker()], waiting, now=4.9)) == ["j/1/0"]
    assert ids(decide([worker()], waiting, now=5.0)) == ["j/0/0", "j/1/0"]


def test_several_workers_share_without_doubles() -> None:
    found = decide([worker("a", free=2), worker("b", free=3)], Waiting(samples(range(9)), oldest_step=0), 0.0)
    assert ids(found) == [f"j/{group}/0" for group in range(5)]
    assert sorted(grant.worker for grant in found) == ["a", "a", "b", "b", "b"]


def test_a_round_holds_workers_that_have_its_version_and_no_more_than_it_needs() -> None:
    fleet = [worker("old", V0), worker("there", V1), worker("ahead", V2)]
    assert pins(fleet, V1, samples_left=4) == {"there"}
    assert pins(fleet, V1, samples_left=5) == {"there", "old"}
    assert pins(fleet, V1, samples_left=99) == {"there", "old", "ahead"}
    assert pins(fleet, V1, samples_left=0) == set()
