"""The job file's schema. Every field has a default that runs on a laptop, except model, data and reward.

Numbers that follow from others are properties here, not fields. Unknown keys are errors.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class DataSpec(Section):
    """Where prompts come from: exactly one of `reasoning_gym`, `jsonl`, `huggingface`."""

    reasoning_gym: str | None = Field(None, description="A reasoning-gym task, e.g. chain_sum.")
    settings: dict[str, Any] = Field(default_factory=dict, description="The task's own settings.")
    jsonl: str | None = Field(None, description="Path of a JSON-lines file.")
    huggingface: str | None = Field(None, description="Name or folder of a Hugging Face data set.")
    split: str = Field("train", description="Split of a Hugging Face data set.")
    size: int = Field(4096, ge=1, le=10_000_000, description="Rows to draw from a reasoning-gym task.")
    prompt: str = Field("question", description="Column that holds the prompt.")
    answer: str = Field("answer", description="Column that holds the answer.")
    template: Literal["chat", "raw"] = Field("chat", description="Wrap the prompt as a chat, or give it as it is.")
    system: str | None = Field(None, description="System message of the chat template.")
    suffix: str = Field("", description="Text put after each prompt, before the template.")
    shuffle: bool = Field(True, description="Draw rows in a seeded order; false: in file order.")
    epochs: int | None = Field(None, ge=1, description="Stop after so many passes; empty: as many as the steps need.")
    on_bad_row: Literal["refuse", "skip"] = Field("refuse", description="What to do with a row that cannot be read.")
    on_long_prompt: Literal["refuse", "skip"] = Field("refuse", description="... with a prompt over the context.")

    @model_validator(mode="after")
    def one_source(self) -> DataSpec:
        named = [n for n in ("reasoning_gym", "jsonl", "huggingface") if getattr(self, n) is not None]
        if len(named) != 1:
            raise ValueError(f"name exactly one of reasoning_gym, jsonl, huggingface (found: {', '.join(named) or 'none'})")
        return self


class RewardSpec(Section):
    """One named component of the reward."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")
    kind: Literal["reasoning_gym", "math", "exact", "regex", "length", "python"]
    weight: float = Field(1.0, allow_inf_nan=False)
    extract: Literal["whole", "last_number", "tag", "regex"] = Field("whole", description="What part of the answer is graded.")
    tag: str = Field("answer", description="For extract: tag.")
    pattern: str = Field("", description="For extract: regex (first group) and kind: regex.", max_length=1000)
    target_tokens: int = Field(0, ge=0, description="For kind: length: 1 at or under so many tokens, less beyond.")
    function: str = Field("", description="For kind: python: module:function, or path.py:function.")
    timeout_seconds: float = Field(5.0, gt=0, le=600)
    memory_mebibytes: int = Field(512, ge=64, le=65536, description="For kind: python.")


class StopAt(Section):
    solve_rate: float = Field(gt=0, le=1, description="End when an evaluation's solve rate reaches this.")


class AlgorithmSpec(Section):
    """How the model is trained."""

    kind: Literal["grpo", "sft"] = "grpo"
    steps: int = Field(100, ge=1, le=1_000_000)
    group_size: int = Field(8, ge=1, le=1024, description="Answers per prompt (grpo); sft uses 1.")
    groups_per_step: int = Field(8, ge=1, le=65536, description="Prompts per optimizer step.")
    staleness: int = Field(1, ge=0, le=64, description="How many versions old a trained token may be; 0 is on-policy.")
    on_stale: Literal["drop"] = Field("drop", description="What happens to a group that came too late.")
    learning_rate: float = Field(1e-6, gt=0, le=1)
    warmup_steps: int = Field(0, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.99, ge=0, lt=1)
    max_gradient_norm: float = Field(1.0, gt=0)
    clip_low: float = Field(0.2, ge=0, le=1)
    clip_high: float = Field(0.28, ge=0, le=10)
    max_importance_weight: float = Field(2.0, ge=1, description="Importance weights are truncated here.")
    kl: float = Field(0.0, ge=0, description="Weight of the KL to the first version (k3 estimator).")
    advantage: Literal["group_std", "group_mean"] = Field("group_std", description="Divide by the group's std, or not.")
    loss_normalisation: Literal["token", "sequence", "constant"] = "token"
    tokens_per_micro_batch: int = Field(4096, ge=1)
    precision: Literal["float32", "bfloat16", "auto"] = Field("auto", description="Trainer's autocast; auto: bfloat16 where fast.")
    stop_at: StopAt | None = None


class SamplingSpec(Section):
    temperature: float = Field(1.0, gt=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(-1, ge=-1)
    max_tokens: int = Field(64, ge=1, le=1_000_000)
    stop: tuple[str, ...] = ()


class CheckpointSpec(Section):
    every: int = Field(10, ge=1, description="Steps between checkpoints; the last step always has one.")
    keep: int = Field(2, ge=2)


class EvaluationSpec(Section):
    every: int = Field(0, ge=0, description="Steps between evaluations; 0: only before and after. ")
    prompts: int = Field(0, ge=0, description="Held-out prompts; 0: no evaluation.")
    samples: int = Field(1, ge=1, le=64, description="Answers per prompt in sampled mode.")
    modes: tuple[Literal["greedy", "sampled"], ...] = ("greedy", "sampled")


class EngineSpec(Section):
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"


class LimitsSpec(Section):
    max_attempts: int = Field(3, ge=1, le=100)
    lease_seconds: float = Field(60.0, gt=0, description="A lease ends when it made no progress for so long.")
    max_dead_rate: float = Field(0.5, gt=0, le=1, description="The job fails when more of its samples are dead.")


class JobSpec(Section):
    """A job: the whole file."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?$")]
    model: Annotated[str, Field(min_length=1, max_length=1024)]
    data: DataSpec
    reward: tuple[RewardSpec, ...] = Field(min_length=1, max_length=32)
    algorithm: AlgorithmSpec = AlgorithmSpec()
    sampling: SamplingSpec = SamplingSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    engine: EngineSpec = EngineSpec()
    limits: LimitsSpec = LimitsSpec()
    seed: int = Field(0, ge=0, le=2**31 - 1, description="The one seed: data, sampling and trainer seeds follow from it.")
    deterministic: bool = Field(False, description="Fixed shapes and threads: the same file gives the same weights.")
    retain: bool = Field(False, description="Keep trained samples in the streams.")

    @property
    def samples_per_group(self) -> int:
        return 1 if self.algorithm.kind == "sft" else self.algorithm.group_size

    @property
    def groups_in_flight(self) -> int:
        """Groups that the staleness rule admits at once."""
        return (self.algorithm.staleness + 1) * self.algorithm.groups_per_step
