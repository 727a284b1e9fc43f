"""The job file's schema. Every field has a default that runs on a laptop, except name, model, data and reward.

Shapes and bounds of single fields are here; what several fields must agree on is in `rules`. Numbers that follow from
others are properties, not fields. Unknown keys are errors, and no type is converted (`"8"` is not 8).
The descriptions are what `docs/job-file.md` says.
"""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict

T = TypeVar("T")
Many = Annotated[tuple[T, ...], Strict(False)]  # YAML and MessagePack know lists only
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")]
Text = Annotated[str, Field(max_length=20_000)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


class DataPart(Section):
    """One share of a mix of reasoning-gym tasks. Evaluations are reported for each part by its name."""

    name: Name = Field(description="Label of its rows; evaluations name it.")
    reasoning_gym: str = Field(min_length=1, max_length=100, description="A reasoning-gym task, e.g. chain_sum.")
    settings: dict[str, Any] = Field(default_factory=dict, description="The task's own settings.")
    share: float = Field(
        default=1.0, gt=0, le=1e6, description="Its weight among the parts: rows = size * share / all shares."
    )


class DataSpec(Section):
    """Where prompts come from: exactly one of `reasoning_gym`, `parts`, `jsonl`, `huggingface`."""

    reasoning_gym: str | None = Field(
        default=None, min_length=1, max_length=100, description="A reasoning-gym task, e.g. chain_sum."
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="The task's own settings.")
    parts: Many[DataPart] = Field(default=(), max_length=32, description="A mix of reasoning-gym tasks instead of one.")
    jsonl: str | None = Field(
        default=None, min_length=1, max_length=4096, description="Path of a JSON-lines file: one row a line."
    )
    huggingface: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Name of a data set on the hub, or a folder with data files.",
    )
    subset: str | None = Field(
        default=None, max_length=200, description="Configuration of a Hugging Face data set, e.g. main."
    )
    split: str = Field(default="train", min_length=1, max_length=200, description="Split of a Hugging Face data set.")
    size: int = Field(
        default=4096, ge=1, le=10_000_000, description="Rows to draw from reasoning-gym, all parts together."
    )
    prompt: str = Field(default="question", min_length=1, max_length=200, description="Column that holds the prompt.")
    answer: str = Field(default="answer", min_length=1, max_length=200, description="Column that holds the answer.")
    template: Literal["chat", "raw"] = Field(
        default="chat", description="Wrap the prompt as a chat, or give it as it is."
    )
    system: Text | None = Field(
        default=None, description="System message of the chat; empty: what the model's template does."
    )
    suffix: Text = Field(default="", description="Text put after each prompt, before the template.")
    shuffle: bool = Field(default=True, description="Draw rows in a seeded order; false: in file order.")
    epochs: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Stop after so many passes; empty: as many as the steps need."
    )
    on_bad_row: Literal["refuse", "skip"] = Field(
        default="refuse", description="What to do with a row that cannot be read."
    )
    on_long_prompt: Literal["refuse", "skip"] = Field(
        default="refuse", description="... with a prompt over the model's context."
    )

    @property
    def tasks(self) -> tuple[DataPart, ...]:
        """The reasoning-gym tasks to draw from, one or several; empty for files. A single task has the name `all`."""
        if self.reasoning_gym is not None:
            return (DataPart(name="all", reasoning_gym=self.reasoning_gym, settings=self.settings),)
        return self.parts

    @property
    def task_rows(self) -> tuple[int, ...]:
        """Rows of each of `tasks`: `size` by their shares, rounded so that the sum is `size`."""
        total = sum(part.share for part in self.tasks)
        ends, covered = [0], 0.0
        for part in self.tasks:
            covered += part.share
            ends.append(round(self.size * covered / total))
        return tuple(end - start for start, end in pairwise(ends))


class RewardSpec(Section):
    """One named component. The reward is the weighted sum; an answer is *solved* when the first component is 1."""

    name: Name = Field(description="Its name in scores and metrics.")
    kind: Literal["reasoning_gym", "math", "exact", "regex", "length", "python"] = Field(
        description="reasoning_gym: the task's own score; math: equal by math-verify; exact: equal text; "
        "regex: `pattern` is found; length: 1 up to `target_tokens`, less beyond; python: `function`."
    )
    weight: float = Field(default=1.0, ge=-1e6, le=1e6, description="Its factor in the sum; 0: only shown.")
    extract: Literal["whole", "last_number", "tag", "regex"] = Field(
        default="whole",
        description="What part of the answer is graded: all of it, its last number, `<tag>...</tag>`, or a regex.",
    )
    tag: str = Field(default="answer", pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,40}$", description="For extract: tag.")
    pattern: str = Field(
        default="", max_length=1000, description="For extract: regex (its first group) and for kind: regex."
    )
    target_tokens: int = Field(default=0, ge=0, le=1_000_000, description="For kind: length.")
    function: str = Field(
        default="", max_length=1000, description="For kind: python: module:function, or path.py:function."
    )
    timeout_seconds: float = Field(
        default=5.0, gt=0, le=600, description="One answer's time; over it counts as not graded."
    )
    memory_mebibytes: int = Field(default=512, ge=64, le=65536, description="For kind: python: memory of its process.")


class StopAt(Section):
    """When to end before `steps`."""

    solve_rate: float = Field(gt=0, le=1, description="End when a sampled evaluation's solve rate reaches this.")


class AlgorithmSpec(Section):
    """How the model is trained."""

    kind: Literal["grpo", "sft"] = Field(
        default="grpo", description="grpo: from rewards; sft: on the data's answers (warm start)."
    )
    steps: int = Field(default=100, ge=1, le=1_000_000, description="Optimizer steps.")
    group_size: int = Field(default=8, ge=1, le=1024, description="Answers per prompt (grpo); sft uses 1.")
    groups_per_step: int = Field(default=8, ge=1, le=16384, description="Prompts per optimizer step.")
    staleness: int = Field(
        default=1, ge=0, le=64, description="How many versions old a trained token may be; 0 is on-policy."
    )
    on_stale: Literal["drop"] = Field(default="drop", description="What happens to a group that came too late.")
    learning_rate: float = Field(default=1e-6, gt=0, le=1, description="AdamW's learning rate after the warm-up.")
    warmup_steps: int = Field(
        default=0, ge=0, le=1_000_000, description="Steps in which the learning rate rises linearly."
    )
    weight_decay: float = Field(default=0.0, ge=0, le=10, description="AdamW's weight decay.")
    adam_beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW's beta 1.")
    adam_beta2: float = Field(default=0.99, ge=0, lt=1, description="AdamW's beta 2.")
    max_gradient_norm: float = Field(default=1.0, gt=0, le=1e6, description="Gradients are scaled down to this norm.")
    clip_low: float = Field(default=0.2, ge=0, le=1, description="The policy ratio is clipped at 1 - this.")
    clip_high: float = Field(default=0.28, ge=0, le=10, description="... and at 1 + this.")
    max_importance_weight: float = Field(
        default=2.0, ge=1, le=1e6, description="Importance weights are truncated here."
    )
    kl: float = Field(default=0.0, ge=0, le=1e3, description="Weight of the KL to the first version (k3 estimator).")
    advantage: Literal["group_std", "group_mean"] = Field(
        default="group_std",
        description="Reward less the group's mean, divided by the group's standard deviation or not.",
    )
    loss_normalisation: Literal["token", "sequence", "constant"] = Field(
        default="token", description="Mean over the step's tokens, over answers, or over samples * max_tokens."
    )
    tokens_per_micro_batch: int = Field(
        default=4096, ge=1, le=16_777_216, description="Memory: tokens of one forward pass."
    )
    precision: Literal["float32", "bfloat16", "auto"] = Field(
        default="auto", description="Trainer's autocast; auto: bfloat16 where the hardware is fast at it."
    )
    stop_at: StopAt | None = Field(default=None, description="End earlier; empty: after `steps`.")


class SamplingSpec(Section):
    """How answers are drawn in training and in sampled evaluations."""

    temperature: float = Field(
        default=1.0, ge=0.01, le=10, description="Greedy answers are an evaluation mode, not temperature 0."
    )
    top_p: float = Field(default=1.0, gt=0, le=1, description="Draw from the most likely tokens with this much mass.")
    top_k: int = Field(
        default=-1, ge=-1, le=1_000_000, description="Draw from so many most likely tokens; -1: from all."
    )
    max_tokens: int = Field(default=64, ge=1, le=1_000_000, description="New tokens per answer.")
    stop: Many[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default=(), max_length=16, description="Texts that end an answer, beside the model's own end tokens."
    )


class CheckpointSpec(Section):
    """What survives a crash of the trainer."""

    every: int = Field(
        default=10, ge=1, le=1_000_000, description="Steps between checkpoints; the last step always has one."
    )
    keep: int = Field(default=2, ge=2, le=1000, description="Checkpoints kept.")


class EvaluationSpec(Section):
    """Held-out prompts, disjoint by question from the training rows, answered by the same engines at one version."""

    every: int = Field(
        default=0, ge=0, le=1_000_000, description="Steps between evaluations; 0: only before and after."
    )
    prompts: int = Field(default=0, ge=0, le=100_000, description="Held-out prompts; 0: no evaluation.")
    samples: int = Field(default=1, ge=1, le=64, description="Answers per prompt in sampled mode.")
    modes: Many[Literal["greedy", "sampled"]] = Field(
        default=("greedy", "sampled"),
        min_length=1,
        max_length=2,
        description="greedy: temperature 0; sampled: as in training.",
    )


class EngineSpec(Section):
    """The inference engine."""

    dtype: Literal["float32", "bfloat16", "auto"] = Field(
        default="auto", description="auto: bfloat16 where the hardware is fast at it."
    )


class LimitsSpec(Section):
    """When to give up."""

    max_attempts: int = Field(
        default=3, ge=1, le=100, description="Tries at a sample that fails for a reason not the model's."
    )
    lease_seconds: float = Field(
        default=60.0, gt=0, le=86400, description="A lease ends when it made no progress for so long."
    )
    max_dead_rate: float = Field(
        default=0.5, gt=0, le=1, description="The job fails when more of its samples are dead."
    )


class JobSpec(Section):
    """A job: the whole file."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?$")] = Field(
        description="Lower-case letters, digits and dashes; the job's id is the name and a random part."
    )
    model: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        description="A hub id, a local folder, a shipped name (smollm2-135m-instruct, tiny, tiny-qwen2), or job:NAME."
    )
    data: DataSpec = Field(description="Where prompts come from.")
    reward: Many[RewardSpec] = Field(min_length=1, max_length=32, description="Components of the reward.")
    algorithm: AlgorithmSpec = Field(default=AlgorithmSpec(), description="How the model is trained.")
    sampling: SamplingSpec = Field(default=SamplingSpec(), description="How answers are drawn.")
    checkpoint: CheckpointSpec = Field(default=CheckpointSpec(), description="What survives a crash of the trainer.")
    evaluation: EvaluationSpec = Field(default=EvaluationSpec(), description="Held-out evaluation.")
    engine: EngineSpec = Field(default=EngineSpec(), description="The inference engine.")
    limits: LimitsSpec = Field(default=LimitsSpec(), description="When to give up.")
    seed: int = Field(
        default=0, ge=0, le=2**31 - 1, description="The one seed: data, sampling and trainer seeds follow from it."
    )
    deterministic: bool = Field(
        default=False, description="Fixed shapes and threads: the same file gives the same weights."
    )
    retain: bool = Field(default=False, description="Keep trained samples in the streams.")

    @property
    def samples_per_group(self) -> int:
        return 1 if self.algorithm.kind == "sft" else self.algorithm.group_size

    @property
    def samples_per_step(self) -> int:
        return self.algorithm.groups_per_step * self.samples_per_group

    @property
    def groups_in_flight(self) -> int:
        """Groups that the staleness rule admits at once."""
        return (self.algorithm.staleness + 1) * self.algorithm.groups_per_step

    @property
    def digest(self) -> str:
        """sha256 of the whole job with its defaults filled in; two files that mean the same have one digest."""
        plain = self.model_dump(mode="json")
        return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
