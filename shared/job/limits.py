"""Byte limits that follow from a job file, so that nobody has to guess them.

A stream has to hold every sample that may not be deleted yet: what is in flight, and what the two oldest kept
checkpoints do not cover. Admission reserves these bytes and is the back-pressure; the broker's own limit is a guard.
"""

from __future__ import annotations

from shared.job.spec import JobSpec

KIBIBYTE, MEBIBYTE = 1024, 1024 * 1024
INLINE_BYTES = 1 * MEBIBYTE  # a larger trajectory leaves its body in the object store
TOKEN_BYTES = 4 + 1 + 2 * 4  # id, mask, two columns of log-probabilities
TEXT_BYTES_PER_TOKEN = 8  # the answer's text travels beside its ids
FIXED_BYTES = 16 * KIBIBYTE  # names, digests, the row, the score
HEDGES = 1.25  # second attempts at a sample, and copies that a redo left
MIN_STREAM_BYTES = 64 * MEBIBYTE
LEDGER_SAMPLE_BYTES = 400  # one sample's share in issued, batched, trained and retired records
MIN_LEDGER_BYTES = 16 * MEBIBYTE

MAX_SAMPLES_PER_STEP = 16_384  # one batch record, which names every sample, fits a message
MAX_STREAM_BYTES = 1024**4
MAX_LEDGER_BYTES = 64 * 1024**3


def trajectory_bytes(spec: JobSpec, prompt_tokens: int) -> int:
    """The largest trajectory that travels inline, for prompts of at most `prompt_tokens`."""
    answer = spec.sampling.max_tokens
    whole = FIXED_BYTES + (prompt_tokens + answer) * TOKEN_BYTES + (prompt_tokens + answer) * TEXT_BYTES_PER_TOKEN
    return min(whole, INLINE_BYTES)


def samples_kept(spec: JobSpec) -> int:
    """Training samples that may lie in the streams at once: (2 k + S + 1) * B * n, and never more than the job has."""
    algorithm = spec.algorithm
    steps = min(2 * spec.checkpoint.every, algorithm.steps) + algorithm.staleness + 1
    if spec.retain:
        steps = algorithm.steps + algorithm.staleness + 1
    return steps * spec.samples_per_step


def evaluation_samples(spec: JobSpec) -> int:
    """Answers of one evaluation, all modes together."""
    per_prompt = sum(spec.evaluation.samples if mode == "sampled" else 1 for mode in spec.evaluation.modes)
    return spec.evaluation.prompts * per_prompt


def stream_bytes(spec: JobSpec, prompt_tokens: int) -> int:
    """What the trajectory stream, and the scored stream, of this job must be able to hold."""
    samples = samples_kept(spec) + evaluation_samples(spec)
    return max(MIN_STREAM_BYTES, int(samples * trajectory_bytes(spec, prompt_tokens) * HEDGES))


def ledger_bytes(spec: JobSpec) -> int:
    """The room that the ledger may come to need; samples may not use it."""
    samples = (spec.algorithm.steps + spec.algorithm.staleness + 1) * spec.samples_per_step
    return MIN_LEDGER_BYTES + samples * LEDGER_SAMPLE_BYTES
