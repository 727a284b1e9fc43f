"""The trainer's settings."""

from __future__ import annotations

from pydantic import Field

from shared.wire.service import CommonSettings


class Settings(CommonSettings, env_prefix="SLIPSTREAM_TRAINER_"):
    """Everything about *what* is trained stands in the job file; here is only where and how many at once."""

    slots: int = Field(2, ge=1, le=1024, description="Jobs trained at once, each in a process of its own.")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:1; auto: the GPU if there is one.")
    no_buffer_seconds: float = Field(60.0, gt=0, description="Silence of the replay buffer before people are told.")
    share_prompts: bool = Field(True, description="Compute the prompt of a group once, where the model allows it.")
