"""Which version may follow which, and which ones are kept. Pure.

Versions are told apart by (step, epoch) and ordered in time by (epoch, step): a newer trainer epoch began later,
whatever step it resumed from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from shared.wire.messages import Version

NEWEST_KEPT = 2


def in_time(version: Version) -> tuple[int, int]:
    """The order in which versions are made."""
    return (version.epoch, version.step)


def may_follow(version: Version, announced: Version | None, *, announced_is_lost: bool) -> bool:
    """Whether `version` may be announced after `announced`.

    Engines go forward: both a larger step and no smaller epoch. A redone step is announced only when the announced
    version can no longer be served, so that a new worker finds weights at all.
    """
    if announced is None:
        return True
    if version.step > announced.step and version.epoch >= announced.epoch:
        return True
    return announced_is_lost and version.epoch > announced.epoch


def retained(versions: Iterable[Version], announced: Version | None, held: Collection[Version]) -> set[Version]:
    """Of `versions`, those to keep: the announced one, the newest ones up to it, and what live processes hold.

    One that was made after the announced one is kept too: it may be the next.
    """
    present = set(versions)
    if announced is None:
        return present
    past = sorted((v for v in present if in_time(v) <= in_time(announced)), key=in_time)
    return set(past[-NEWEST_KEPT:]) | (present - set(past)) | (present & ({announced} | set(held)))
