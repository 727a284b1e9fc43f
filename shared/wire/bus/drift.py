"""Comparing what the server has with what `topics` declares; the text names each differing field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def differences(have: Mapping[str, Any], want: Mapping[str, Any]) -> list[str]:
    """`field: have X, want Y` for each wanted field that the server has otherwise."""
    return [
        f"{name}: have {have.get(name)!r}, want {value!r}" for name, value in want.items() if have.get(name) != value
    ]
