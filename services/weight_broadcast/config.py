"""weight-broadcast's settings."""

from __future__ import annotations

import socket
from pathlib import Path

from pydantic import Field, field_validator

from shared.wire.settings import CommonSettings


class Settings(CommonSettings, env_prefix="SLIPSTREAM_WEIGHT_BROADCAST_"):
    listen: str = Field("127.0.0.1:0", description="host:port of the file server; port 0: any free one.")
    public_url: str = Field("", description="How engines on other hosts reach the file server; else from `listen`.")
    shared_dir: Path | None = Field(
        None, description="Folder for the copies that engines on this host read; else one in /dev/shm."
    )
    copies: bool = Field(True, description="Make such copies where there is room; else serve the snapshots.")
    hold_seconds: float = Field(10.0, gt=0, description="How long a process's word that it needs a version counts.")

    @field_validator("listen")
    @classmethod
    def host_and_port(cls, text: str) -> str:
        host, colon, port = text.rpartition(":")
        if not (host and colon and port.isascii() and port.isdigit() and int(port) < 65536):
            raise ValueError("not host:port, like 127.0.0.1:8500")
        return text

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    def url(self, port: int) -> str:
        """The base of every announced url, once the port is known."""
        if self.public_url:
            return self.public_url.rstrip("/")
        host = self.address[0]
        return f"http://{socket.gethostname() if host in ('0.0.0.0', '::') else host}:{port}"
