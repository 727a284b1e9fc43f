from __future__ import annotations

from services.scheduler.versions import Versions
from shared.wire.messages import Version, Weights


def weights(version: Version, kept=()) -> Weights:
    return Weights(job="j", version=version, files=[], host="h", local_path="/x", urls=[], kept=list(kept))


def test_with_workers_alive_the_newest_that_one_of_them_holds_counts() -> None:
    versions = Versions()
    versions.report([Version(3, 1), Version(1, 2), None])
    assert versions.applied_step(floor=0) == 3
    versions.report([Version(2, 1)])
    assert versions.applied_step(floor=0) == 2


def test_with_nobody_alive_the_newest_ever_seen_counts_and_after_a_restart_what_the_ledger_knows() -> None:
    versions = Versions()
    assert versions.applied_step(floor=5) == 5
    versions.report([Version(7, 1)])
    versions.report([])
    assert versions.applied_step(floor=5) == 7


def test_an_announcement_of_an_older_epoch_or_step_is_ignored() -> None:
    versions = Versions()
    versions.announce(weights(Version(5, 2)))
    versions.announce(weights(Version(9, 1)))
    versions.announce(weights(Version(4, 2)))
    assert versions.announced == Version(5, 2)
    versions.announce(weights(Version(3, 3)))
    assert versions.announced == Version(3, 3)


def test_a_version_can_be_had_while_it_is_kept_or_a_worker_holds_it() -> None:
    versions = Versions()
    assert versions.newest_step == -1
    versions.announce(weights(Version(4, 1), kept=[Version(3, 1), Version(3, 2)]))
    versions.report([Version(2, 1)])
    assert versions.of_step(3) == Version(3, 2)
    assert versions.of_step(2) == Version(2, 1)
    assert versions.of_step(1) is None
    assert versions.can_be_had(Version(4, 1))
    assert versions.newest_step == 4
