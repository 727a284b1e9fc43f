"""What can go wrong around an engine. Each text is one line that says what failed and where."""

from __future__ import annotations


class EngineError(Exception):
    """The engine did not do what was asked."""


class EngineGone(EngineError):
    """Nothing answers at the engine's address, or it ended while it worked."""


class EngineRefused(EngineError):
    """The engine answered that it will not: status 4xx or 5xx, with its own words."""


class EngineUnusable(EngineError):
    """What answers there is not an engine that this service can work with, or cannot be started as it should be."""


class BadAnswer(EngineError):
    """The engine's answer breaks its own promises (lengths, versions, an end without a reason)."""


class Cut(EngineError):
    """The engine ended the request before it was done. `tokens`: how many there were; 0 is not an empty answer."""

    def __init__(self, text: str, tokens: int) -> None:
        super().__init__(text)
        self.tokens = tokens


class NotUpdated(EngineError):
    """The engine does not hold the weights that it was told to load."""


class WeightsError(Exception):
    """A version of the weights that cannot be had, or is not what was announced."""
