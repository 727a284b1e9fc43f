"""How long to wait before the next try of what failed. Pure: the caller brings the clock and does the waiting."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_SECONDS, LONGEST_SECONDS = 0.5, 30.0


@dataclass
class Backoff:
    """Doubles from one failure to the next; a success that lasted a minute forgets them."""

    forget_seconds: float = 60.0
    failures: int = 0
    last: float = float("-inf")

    def failed(self, now: float) -> float:
        """Note a failure at `now`; the seconds to wait."""
        if now - self.last > self.forget_seconds:
            self.failures = 0
        self.last = now
        self.failures += 1
        return float(min(FIRST_SECONDS * 2 ** (self.failures - 1), LONGEST_SECONDS))
