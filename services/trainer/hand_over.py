"""How the trainer comes by the batch of a step: recorded already, or asked of the replay buffer.

The hand-over is the `batched` record; the reply only says that it stands. Waits for ever, but never silently: when no
buffer has answered for a while, people are told once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from services.trainer.view import TrainerView
from shared.wire.bus.api import Bus, NoResponders, TimedOut, Unreachable
from shared.wire.ledger import Ledger
from shared.wire.messages import AskBatch, Batched, BatchReply, decode, encode
from shared.wire.topics import batch_subject

log = logging.getLogger(__name__)

ASK_AGAIN_SECONDS = 0.2
REPLY_SECONDS = 5.0


class HandOver:
    """`tell(text)` reaches people; `give_up()` is asked between two tries: true ends the wait without a batch."""

    def __init__(
        self,
        bus: Bus,
        job: str,
        ledger: Ledger,
        view: TrainerView,
        *,
        tell: Callable[[str], Awaitable[None]],
        silence_seconds: float,
    ) -> None:
        self._bus = bus
        self._job = job
        self._ledger = ledger
        self._view = view
        self._tell = tell
        self._silence_seconds = silence_seconds
        self._answered_at = time.monotonic()
        self._told = False

    async def batch(self, step: int, give_up: Callable[[], bool]) -> Batched | None:
        """The batch of `step`."""
        self._answered_at = time.monotonic()
        while True:
            recorded = self._view.batched.get(step)
            if recorded is not None:
                return recorded
            if give_up():
                return None
            await self._ask(step)
            if step not in self._view.batched:
                await self._ledger.wait_changed(ASK_AGAIN_SECONDS)

    async def _ask(self, step: int) -> None:
        question = encode(AskBatch(trainer_epoch=self._ledger.epoch, step=step))
        try:
            answer = await self._bus.request(batch_subject(self._job), question, timeout_seconds=REPLY_SECONDS)
        except (NoResponders, TimedOut, Unreachable) as error:
            await self._note_silence(step, str(error))
            return
        reply = decode(BatchReply, answer)
        if self._told:
            await self._tell(f"the replay buffer answers again (step {step})")
        self._answered_at, self._told = time.monotonic(), False
        if reply.status == "refused":  # it may not have read this holder's epoch yet; a fenced holder learns it there
            log.info("batch of step %d refused: %s", step, reply.reason)

    async def _note_silence(self, step: int, reason: str) -> None:
        silent = time.monotonic() - self._answered_at
        if silent >= self._silence_seconds and not self._told:
            self._told = True
            await self._tell(
                f"no replay buffer of job {self._job} has answered for {silent:.0f} s; "
                f"the trainer waits for the batch of step {step} ({reason})"
            )
