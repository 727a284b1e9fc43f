"""Settings of the rollout service, from the environment: SLIPSTREAM_ROLLOUT_*."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.wire.settings import CommonSettings


class Settings(CommonSettings):
    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_ROLLOUT_")

    slots: int = Field(default=32, ge=1, le=4096, description="Samples that are generated at once.")
    engine: Literal["builtin", "sglang"] = Field(default="builtin", description="Which engine to start.")
    engine_url: str = Field(default="", description="Use the engine that runs there, and start none.")
    engine_command: str = Field(default="", description="What starts the engine, in place of the usual command.")
    engine_arguments: str = Field(default="", description="Options put after those that the job decides.")
    engine_start_seconds: float = Field(default=300.0, gt=0, description="How long an engine may take to be ready.")
    engine_silent_seconds: float = Field(
        default=40.0, gt=0, description="An engine that answers nothing so long is dead."
    )
    engine_idle_seconds: float = Field(
        default=60.0, gt=0, description="An engine without a job for so long is stopped."
    )
    quantum_seconds: float = Field(default=10.0, gt=0, description="How long to stay with a job while others wait.")
    cache_dir: Path | None = Field(default=None, description="Where weights are kept; else under the data folder.")
