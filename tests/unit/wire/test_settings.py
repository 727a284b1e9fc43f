"""Settings from the environment: strays and bad values end the process with one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field, ValidationError

from shared.wire.settings import CommonSettings, SettingsError


class Settings(CommonSettings, env_prefix="SLIPSTREAM_SAMPLE_"):
    slots: int = Field(4, ge=1, description="Slots.")
    quantum_seconds: float = Field(10.0, gt=0, description="Quantum.")


def test_common_names_have_no_service_in_them(monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_NATS_URL", "nats://elsewhere:1")
    monkeypatch.setenv("SLIPSTREAM_DATA_DIR", "/data")
    monkeypatch.setenv("SLIPSTREAM_SAMPLE_SLOTS", "9")
    settings = Settings()
    assert (settings.nats_url, settings.data_dir, settings.slots) == ("nats://elsewhere:1", Path("/data"), 9)


def test_defaults_run_on_a_laptop():
    settings = Settings()
    assert settings.nats_url == "nats://127.0.0.1:4222"
    assert settings.data_dir == Path(".slipstream/data")


def test_values_may_be_given_by_name():
    assert Settings(slots=2, nats_url="nats://x:1").nats_url == "nats://x:1"


def test_a_stray_name_is_refused_with_the_nearest_known_one(monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_SAMPLE_SLOT", "9")
    with pytest.raises(SettingsError, match=r"SAMPLE_SLOT is no setting; did you mean SLIPSTREAM_SAMPLE_SLOTS\?"):
        Settings()


def test_another_service_s_names_are_not_strays(monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_OTHER_THING", "9")
    assert Settings().slots == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [("SLIPSTREAM_SAMPLE_SLOTS", "0"), ("SLIPSTREAM_SAMPLE_SLOTS", "many"), ("SLIPSTREAM_LOG_LEVEL", "loud")],
)
def test_a_bad_value_is_one_line_that_names_it(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        Settings()
    assert name in str(caught.value) and repr(value) in str(caught.value) and "\n" not in str(caught.value)


def test_settings_do_not_change():
    with pytest.raises(ValidationError):
        Settings().slots = 3
