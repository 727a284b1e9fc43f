"""Which versions of the weights there are: what was announced, what live workers have proved to hold. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from shared.wire.messages import Version, Weights


class Versions:
    """Newest announcement wins; an older epoch or step that comes late is ignored."""

    def __init__(self) -> None:
        self.announced: Version | None = None
        self._kept: frozenset[Version] = frozenset()
        self._live: frozenset[Version] = frozenset()
        self._newest_seen = 0

    def announce(self, weights: Weights) -> None:
        if self.announced is not None and (weights.version.epoch, weights.version.step) < (
            self.announced.epoch,
            self.announced.step,
        ):
            return
        self.announced = weights.version
        self._kept = frozenset([*weights.kept, weights.version])

    def report(self, live: Iterable[Version | None]) -> None:
        """What live workers hold now."""
        self._live = frozenset(version for version in live if version is not None)
        self._newest_seen = max(self._newest_seen, *(version.step for version in self._live), 0)

    @property
    def newest_step(self) -> int:
        """The newest step anybody has told of; -1 while there is none."""
        steps = [version.step for version in self._live]
        return max([-1 if self.announced is None else self.announced.step, *steps])

    def applied_step(self, floor: int) -> int:
        """The newest step that a live worker holds; with nobody alive the newest ever seen, at least `floor`."""
        return max((version.step for version in self._live), default=max(self._newest_seen, floor))

    def can_be_had(self, version: Version) -> bool:
        """Some worker holds it, or any may still fetch it."""
        return version in self._live or version in self._kept

    def of_step(self, step: int) -> Version | None:
        """The version of `step` that can be had; of several the one of the newest epoch."""
        return max((version for version in self._live | self._kept if version.step == step), default=None)
