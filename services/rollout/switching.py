"""The worker's decisions: which version to hold, what that means for the engine, when to go to another job. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from shared.wire.messages import Version

MIN_IDLE_SECONDS = 1.0
SWITCH_SHARE = 4.0  # stay at least so many times as long as the last switch took

# What says how a model's tensors look and how it reads text. The rest of config.json may differ between two writers.
SHAPE_KEYS = (
    "architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "tie_word_embeddings",
    "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "hidden_act", "attention_bias", "eos_token_id",
)  # fmt: skip


class Change(Enum):
    """What has to happen to the engine."""

    KEEP = "it holds what is wanted"
    UPDATE = "new weights into the running engine"
    RESTART = "another engine process"


@dataclass(frozen=True)
class Flags:
    """What a job decides about the engine's start."""

    dtype: str = "auto"
    deterministic: bool = False
    context_length: int = 0


@dataclass(frozen=True)
class Loaded:
    """What an engine was started for, and what it has proved to hold."""

    job: str
    flags: Flags
    shape: str
    version: str


def shape_of(config: Mapping[str, Any], tokenizer_digest: str) -> str:
    """Equal for two model folders when one's weights fit an engine that was started with the other."""
    return repr([config.get(key) for key in SHAPE_KEYS] + [tokenizer_digest])


def engine_change(now: Loaded | None, *, job: str, flags: Flags, shape: str, version: str) -> Change:
    """Versions of one job always fit each other; those of another job only with equal shape and tokenizer."""
    if now is None or now.flags != flags:
        return Change.RESTART
    if now.job == job:
        return Change.KEEP if now.version == version else Change.UPDATE
    return Change.UPDATE if now.shape == shape else Change.RESTART


def wanted_version(*, pinned: str, announced: Version | None, holds_evaluation: bool, holding: str) -> str:
    """The version to hold, as text; empty while there is none.

    Evaluation samples belong to one version, so nothing changes under them. A pin means exactly that version.
    """
    if holds_evaluation and holding:
        return holding
    return pinned or ("" if announced is None else str(announced))


@dataclass(frozen=True)
class Offer:
    """What the scheduler of another running job has for a worker that comes now."""

    job: str
    waiting: int


def in_turn(jobs: Sequence[str], after: str) -> list[str]:
    """`jobs` in a fixed order that begins behind `after`, so that each gets its turn."""
    ordered = sorted(jobs)
    later = [job for job in ordered if job > after]
    return [*later, *(job for job in ordered if job <= after)]


def stay_seconds(quantum: float, switch: float) -> float:
    """How long to stay while others wait: short switches allow short stays."""
    return max(quantum, SWITCH_SHARE * switch)


def idle_seconds(switch: float) -> float:
    """How long a job must have had nothing before a switch that takes `switch` seconds is worth it."""
    return max(MIN_IDLE_SECONDS, switch / 2)


def leaves(*, stayed: float, idle: float, quantum: float, switch: float, offers: Sequence[Offer]) -> bool:
    """Whether to go to another job: one has work, and this one has had its share or has had nothing for a while."""
    if not any(offer.waiting for offer in offers):
        return False
    return stayed >= stay_seconds(quantum, switch) or idle >= idle_seconds(switch)


def choose(offers: Sequence[Offer]) -> str | None:
    """The job to go to: the first in turn that has work, else the first at all, so that its engine is ready by then."""
    busy = [offer.job for offer in offers if offer.waiting]
    return busy[0] if busy else (offers[0].job if offers else None)
