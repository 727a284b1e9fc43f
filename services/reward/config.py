"""Settings of the reward service, from the environment: SLIPSTREAM_REWARD_*."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.wire.settings import CommonSettings


class Settings(CommonSettings):
    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_REWARD_")

    concurrency: int = Field(64, ge=1, le=1024, description="Trajectories of one job that are graded at once.")
    processes: int = Field(2, ge=1, le=256, description="Grader processes for the built-in kinds, all jobs together.")
    python_processes: int = Field(1, ge=1, le=64, description="Processes for each python: component of a job.")
    start_seconds: float = Field(60.0, gt=0, description="How long a grader process may take to import what it needs.")
