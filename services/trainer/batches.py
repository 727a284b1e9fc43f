"""A recorded batch -> examples. The batch is a ledger record; the bodies are read from `scored` by sequence."""

from __future__ import annotations

from services.trainer.examples import BadSample, Example, from_scored
from shared.wire.bus.api import Bus
from shared.wire.messages import Batched, digest
from shared.wire.topics import scored


async def fetch(bus: Bus, job: str, batch: Batched, *, sampled: bool, context_length: int) -> list[Example]:
    """The examples of a batch, in its order. Raises `BadSample` when a body is gone or is not the one recorded."""
    stream = scored(job).name
    stored = await bus.get_many(stream, [sample.sequence for sample in batch.samples])
    examples = []
    for record, message in zip(batch.samples, stored, strict=True):
        if message is None:
            raise BadSample(f"batch of step {batch.step}: {record.sample} is gone from {stream} ({record.sequence})")
        if digest(message.data) != record.digest:
            raise BadSample(
                f"batch of step {batch.step}: {record.sample} at {stream} {record.sequence} has another digest"
            )
        examples.append(
            from_scored(message.data, record, step=batch.step, sampled=sampled, context_length=context_length)
        )
    return examples


def masked_ids(examples: list[Example]) -> list[str]:
    """The samples that were left out of the loss: named in `trained`, never silently."""
    return [example.sample for example in examples if example.masked]
