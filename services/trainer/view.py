"""What the trainer reads in the ledger, folded record by record. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.wire.messages import Batched, Dropped, Ending, LedgerRecord, Trained, batch_digest


@dataclass
class TrainerView:
    """`apply` is given every record once, in order.

    batched  step -> its batch. Those of steps that every kept checkpoint covers are forgotten: nothing redoes them.
    trained  the `trained` record behind each checkpoint folder, by the folder's name
    closed   steps of whose samples some were dropped after all (the job was cancelled): never to be recorded
    """

    batched: dict[int, Batched] = field(default_factory=dict)
    trained: dict[str, Trained] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    ending: Ending | None = None
    sequence: int = 0

    def apply(self, sequence: int, record: LedgerRecord) -> None:
        self.sequence = sequence
        if isinstance(record, Batched):
            self.batched[record.step] = record
        elif isinstance(record, Trained):
            self.trained[record.checkpoint] = record
            for step in [s for s in self.batched if s <= record.oldest_kept_step]:
                del self.batched[step]
        elif isinstance(record, Dropped):
            gone = set(record.samples)
            self.closed |= {step for step, b in self.batched.items() if any(s.sample in gone for s in b.samples)}
        elif isinstance(record, Ending):
            self.ending = record

    def last_step(self, planned: int) -> int:
        """The job's last step: as planned, or earlier where the job was told to end."""
        return planned if self.ending is None else min(planned, self.ending.last_step)

    def digest(self, first: int, last: int) -> str | None:
        """The digest of the batches of `first..last`; None when one of them is not recorded."""
        batches = [self.batched.get(step) for step in range(first, last + 1)]
        return None if any(b is None for b in batches) else batch_digest(b for b in batches if b is not None)
