"""The gateway's settings: environment names `SLIPSTREAM_GATEWAY_*`."""

from __future__ import annotations

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from shared.wire.service import CommonSettings


class Settings(CommonSettings):
    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_GATEWAY_", frozen=True)

    listen: str = Field(default="127.0.0.1:8400", description="host:port of the HTTP server; port 0: any free one.")
    max_body_bytes: int = Field(default=1024 * 1024, ge=1024, description="A longer request body is refused with 413.")
    check_seconds: float = Field(default=300.0, gt=0, description="Limit for loading a job's model, data, reward.")
    heartbeat_seconds: float = Field(default=10.0, gt=0, description="A silent event stream gets a comment this often.")

    @field_validator("listen")
    @classmethod
    def _has_port(cls, value: str) -> str:
        host, colon, port = value.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ValueError(f"{value!r} is not host:port, as in 127.0.0.1:8400")
        return value

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])
