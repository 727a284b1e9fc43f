"""From a lease to the engine's request, and from its answer to a trajectory. Pure.

    prefix segments (mask 0, as leased) + answer segment (mask 1: every sampled token, a sampled stop token included)

Nothing is appended and nothing is tokenised: the ids in a trajectory are the ids that the engine read and drew.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from services.rollout.answer import Answer
from shared.wire.messages import Lease, Sampling, Segment, Trajectory, array

MASK_TOP_K = 4096  # an engine reports what top-p and top-k kept only for so many tokens
STREAM_INTERVAL = 16  # tokens between two signs of progress; each repeats the whole answer so far


def cuts(sampling: Sampling) -> bool:
    """Whether top-p or top-k leave tokens out, so that the engine draws from a renormalised distribution."""
    return sampling.temperature > 0 and (sampling.top_p < 1.0 or sampling.top_k > 0)


def drawn_as(sampling: Sampling) -> Sampling:
    """`sampling` as the engine can do it and report it: where something is cut, top-k is at most 4096.

    Behind the 4096 likeliest tokens top-p leaves next to nothing; what is left out is left out of `behaviour` too, and
    the trajectory says how it was drawn.
    """
    if cuts(sampling) and not 0 < sampling.top_k <= MASK_TOP_K:
        return msgspec.structs.replace(sampling, top_k=MASK_TOP_K)
    return sampling


def prompt_ids(lease: Lease) -> list[int]:
    ids: list[int] = np.concatenate([array(segment.token_ids, "<i4") for segment in lease.prefix]).tolist()
    return ids


def request(lease: Lease, rid: str) -> dict[str, Any]:
    """The body of POST /generate."""
    sampling = drawn_as(lease.sampling)
    parameters: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_new_tokens": sampling.max_tokens,
        "sampling_seed": sampling.seed,
        "stream_interval": STREAM_INTERVAL,
    }
    if sampling.stop:
        parameters["stop"] = sampling.stop
    if sampling.stop_token_ids:
        parameters["stop_token_ids"] = sampling.stop_token_ids
    body = {
        "rid": rid,
        "input_ids": prompt_ids(lease),
        "sampling_params": parameters,
        "return_logprob": True,
        "stream": True,
    }
    return body | {"return_sampling_mask": True} if cuts(sampling) else body


def trajectory(lease: Lease, answer: Answer, *, worker: str, started_at: float, finished_at: float) -> Trajectory:
    """What the attempt produced. Raises `BadMessage` when it breaks the schema's rules."""
    drawn = Segment(
        role="assistant",
        token_ids=answer.token_ids.tobytes(),
        mask=b"\x01" * len(answer.token_ids),
        columns={"raw": answer.raw.tobytes(), "behaviour": answer.behaviour.tobytes()},
        spans=answer.spans,
    )
    given = [
        segment if not any(segment.mask) else msgspec.structs.replace(segment, mask=bytes(segment.length))
        for segment in lease.prefix
    ]
    made = Trajectory(
        sample=lease.sample,
        attempt=lease.attempt,
        sample_class=lease.sample_class,
        policy=lease.policy,
        adapter=lease.adapter,
        segments=[*given, drawn],
        sampling=drawn_as(lease.sampling),
        finish_reason=answer.finish_reason,
        text=answer.text,
        worker=worker,
        started_at=started_at,
        finished_at=finished_at,
        digests=lease.digests,
        row=lease.row,
        extra={"cached_tokens": answer.cached_tokens},
    )
    made.check()
    return made
