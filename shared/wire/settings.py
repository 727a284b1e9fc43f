"""The settings that every service shares, and the refusal of names that no service knows.

A service subclasses `CommonSettings` with its own prefix and fields:

    class Settings(CommonSettings, env_prefix="SLIPSTREAM_REWARD_"):
        workers: int = Field(2, ge=1, description="Grading processes.")

A bad value or a stray `SLIPSTREAM_REWARD_*` name ends the process with one line that says what would be right.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class SettingsError(SystemExit):
    """Settings that cannot be used. Uncaught, it prints its one line and ends the process with status 1."""


class CommonSettings(BaseSettings):
    """Where the broker and the data are, and how to log."""

    model_config = SettingsConfigDict(frozen=True, env_prefix="SLIPSTREAM_", populate_by_name=True, extra="forbid")

    nats_url: str = Field(
        "nats://127.0.0.1:4222",
        validation_alias=AliasChoices("SLIPSTREAM_NATS_URL"),
        description="The broker.",
    )
    data_dir: Path = Field(
        Path(".slipstream/data"),
        validation_alias=AliasChoices("SLIPSTREAM_DATA_DIR"),
        description="The folder for models, snapshots and checkpoints.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", validation_alias=AliasChoices("SLIPSTREAM_LOG_LEVEL"), description="debug also shows stack traces."
    )
    log_format: Literal["plain", "json"] = Field(
        "plain", validation_alias=AliasChoices("SLIPSTREAM_LOG_FORMAT"), description="One record a line, either way."
    )
    drain_seconds: float = Field(
        6.0,
        gt=0,
        validation_alias=AliasChoices("SLIPSTREAM_DRAIN_SECONDS"),
        description="How long a service may finish its work after SIGTERM.",
    )

    def __init__(self, **values: Any) -> None:
        self._refuse_strays()
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError("; ".join(self._explain(e) for e in error.errors())) from None

    @classmethod
    def environment_names(cls) -> list[str]:
        """The names of the environment that this class reads."""
        prefix = str(cls.model_config.get("env_prefix", ""))
        names = []
        for name, field in cls.model_fields.items():
            alias = field.validation_alias
            names.append(str(alias.choices[0]) if isinstance(alias, AliasChoices) else (prefix + name).upper())
        return names

    @classmethod
    def _refuse_strays(cls) -> None:
        prefix = str(cls.model_config.get("env_prefix", ""))
        if prefix == CommonSettings.model_config.get("env_prefix"):
            return  # the common prefix alone cannot tell a stray from another service's name
        known = cls.environment_names()
        for name in sorted(os.environ):
            if name.upper().startswith(prefix) and name.upper() not in known:
                near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.0)
                raise SettingsError(f"{name} is no setting; did you mean {near[0]}?")

    @classmethod
    def _explain(cls, error: Any) -> str:
        place = ".".join(str(part) for part in error["loc"])
        prefix = str(cls.model_config.get("env_prefix", ""))
        name = place if place.startswith("SLIPSTREAM_") else (prefix + place).upper()
        return f"{name}: {error['msg']} (got {error.get('input')!r})"
