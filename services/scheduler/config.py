"""Settings of the scheduler."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.wire.settings import CommonSettings


class Settings(CommonSettings):
    """What an operator may set; every default runs on a laptop."""

    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_SCHEDULER_")

    silent_seconds: float = Field(3.0, gt=0, description="A worker that has not asked for so long is dead.")
    tick_seconds: float = Field(0.25, gt=0, description="How often deadlines are looked at.")
    progress_seconds: float = Field(2.0, gt=0, description="How often progress is told.")
    stall_seconds: float = Field(30.0, gt=0, description="Nothing moved for so long: say which stage waits, for what.")
