"""Slipstream for scripts: `from slipstream import Client`. Nothing is imported before it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.client import Client
    from gateway.client_errors import SlipstreamError
    from gateway.sse import JobEvent

__all__ = ["Client", "JobEvent", "SlipstreamError"]


def __getattr__(name: str) -> Any:
    import importlib

    homes = {"Client": "gateway.client", "JobEvent": "gateway.sse", "SlipstreamError": "gateway.client_errors"}
    if name not in homes:
        raise AttributeError(f"module 'slipstream' has no attribute {name!r}")
    return getattr(importlib.import_module(homes[name]), name)
