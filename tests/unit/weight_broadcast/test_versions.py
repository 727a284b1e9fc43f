"""Which version may follow which, which are kept, and what a process's word is worth."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.weight_broadcast.holds import Holds
from services.weight_broadcast.versions import in_time, may_follow, retained
from shared.wire.messages import Presence, Version

V = Version
versions = st.builds(Version, st.integers(0, 9), st.integers(1, 3))


@pytest.mark.parametrize(
    ("version", "announced", "lost", "may"),
    [
        (V(0, 1), None, False, True),
        (V(3, 1), V(2, 1), False, True),
        (V(2, 1), V(2, 1), False, False),
        (V(1, 1), V(2, 1), False, False),
        (V(3, 1), V(2, 2), False, False),  # a trainer that was replaced
        (V(8, 2), V(7, 1), False, True),
        (V(5, 2), V(7, 1), False, False),  # redone: workers ahead keep what they have
        (V(5, 2), V(7, 1), True, True),
        (V(5, 1), V(7, 1), True, False),
    ],
)
def test_versions_go_forward(version: Version, announced: Version | None, lost: bool, may: bool) -> None:
    assert may_follow(version, announced, announced_is_lost=lost) is may


def test_the_newest_two_and_what_is_held_are_kept_and_what_is_not_announced_yet_is_left_alone() -> None:
    present = [V(step, 1) for step in range(8)]
    assert retained(present, V(6, 1), held=[V(2, 1), V(99, 1)]) == {V(2, 1), V(5, 1), V(6, 1), V(7, 1)}


def test_without_an_announcement_everything_is_kept() -> None:
    assert retained([V(0, 1), V(1, 1), V(2, 1)], None, held=[]) == {V(0, 1), V(1, 1), V(2, 1)}


@given(st.sets(versions), versions, st.sets(versions))
def test_the_announced_version_is_always_kept_and_at_most_two_older_ones_without_a_reason(
    present: set[Version], announced: Version, held: set[Version]
) -> None:
    kept = retained(present | {announced}, announced, held)
    assert announced in kept
    assert held & present <= kept
    older = [v for v in kept - held if in_time(v) <= in_time(announced)]
    assert len(older) <= 2


def presence(id: str, versions: Any) -> Presence:
    return Presence(service="rollout", id=id, host="h", pid=1, started_at=0.0, detail={"versions": versions})


def test_a_process_holds_what_it_said_last_for_a_while() -> None:
    holds = Holds(seconds=10)
    holds.hear(presence("a", {"sums": "3.1", "other": "9.1"}), now=0)
    holds.hear(presence("b", {"sums": ["2.1", "4.1"]}), now=5)
    assert holds.held("sums", now=6) == {V(3, 1), V(2, 1), V(4, 1)}
    holds.hear(presence("b", {"sums": ["4.1"]}), now=7)
    assert holds.held("sums", now=10) == {V(3, 1), V(4, 1)}
    assert holds.held("sums", now=11) == {V(4, 1)}
    assert holds.held("sums", now=18) == set()
    assert holds.held("other", now=18) == set()


@pytest.mark.parametrize("versions", [None, "3.1", {"sums": None}, {"sums": ["x", 7, "-1.2"]}, {"sums": {}}, []])
def test_a_word_that_cannot_be_read_holds_nothing_and_harms_nothing(versions: Any) -> None:
    holds = Holds(seconds=10)
    holds.hear(presence("a", versions), now=0)
    assert holds.held("sums", now=0) == set()


def test_a_process_without_versions_is_not_remembered() -> None:
    holds = Holds(seconds=10)
    holds.hear(Presence(service="reward", id="r", host="h", pid=1, started_at=0.0), now=0)
    assert holds._said == {}
