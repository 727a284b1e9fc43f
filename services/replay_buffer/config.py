"""replay-buffer's settings."""

from __future__ import annotations

from pydantic import Field

from shared.wire.settings import CommonSettings


class Settings(CommonSettings, env_prefix="SLIPSTREAM_REPLAY_BUFFER_"):
    pace_seconds: float = Field(
        30.0, ge=0, description="How long a batch waits for a group that would be too old for the next one."
    )
    long_poll_seconds: float = Field(
        1.0, ge=0, le=3, description="How long a trainer that asks is kept before it is told to wait."
    )
    quiet_seconds: float = Field(
        45.0, gt=0, description="Say so when the trainer waits and nothing was scored for so long."
    )
