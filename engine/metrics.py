"""What /metrics and /v1/loads say, under SGLang's names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine.loop import Loop
from engine.requests import Request

BUCKETS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
THROUGHPUT_WINDOW_SECONDS = 1.0


class Metrics:
    """Reads the loop's counters when asked; only latencies are recorded as they happen."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._latency = Histogram(
            "sglang:e2e_request_latency_seconds", "From arrival to the last token", buckets=BUCKETS,
            registry=self._registry,
        )  # fmt: skip
        self._mark = (time.monotonic(), 0)
        self._throughput = 0.0

    def ended(self, request: Request) -> None:
        self._latency.observe(request.finished - request.created)

    def text(self) -> bytes:
        """Prometheus exposition."""
        return generate_latest(self._registry)

    def load(self) -> dict[str, Any]:
        """The flat numbers of /v1/loads."""
        slots, counters = self._loop.slots, self._loop.counters
        running, waiting = slots.count, len(self._loop.waiting)
        capacity = slots.decoder.slots * slots.decoder.length
        used = slots.tokens_held
        seen = counters.prompt_tokens
        return {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": running,
            "num_waiting_reqs": waiting,
            "num_used_tokens": used,
            "num_total_tokens": used,
            "max_total_num_tokens": capacity,
            "max_running_requests": slots.decoder.slots,
            "token_usage": used / capacity,
            "gen_throughput": self._tokens_per_second(),
            "cache_hit_rate": counters.cached_tokens / seen if seen else 0.0,
            "utilization": running / slots.decoder.slots,
        }

    def loads(self) -> dict[str, Any]:
        """The answer of /v1/loads."""
        now = datetime.now(UTC).isoformat()
        return {"timestamp": now, "accelerator": "cpu", "num_accelerators": 1, "loads": [self.load()]}

    def _tokens_per_second(self) -> float:
        now, total = time.monotonic(), self._loop.counters.generation_tokens
        then, before = self._mark
        if now - then >= THROUGHPUT_WINDOW_SECONDS:
            self._throughput = (total - before) / (now - then)
            self._mark = (now, total)
        return self._throughput

    def collect(self) -> Iterator[Metric]:
        load, counters = self.load(), self._loop.counters
        gauges = {
            "num_running_reqs": load["num_running_reqs"],
            "num_queue_reqs": load["num_waiting_reqs"],
            "num_paused_reqs": load["num_running_reqs"] if self._loop.paused else 0,
            "num_retracted_reqs": counters.retracted,
            "num_used_tokens": load["num_used_tokens"],
            "token_usage": load["token_usage"],
            "gen_throughput": load["gen_throughput"],
            "cache_hit_rate": load["cache_hit_rate"],
        }
        for name, value in gauges.items():
            yield GaugeMetricFamily(f"sglang:{name}", name, value=value)
        totals = {
            "prompt_tokens": counters.prompt_tokens,
            "cached_tokens": counters.cached_tokens,
            "generation_tokens": counters.generation_tokens,
            "num_requests": counters.finished,
            "num_aborted_requests": counters.aborted,
            "decode_steps": counters.steps,
            "decode_step_seconds": counters.step_seconds,
        }
        for name, total in totals.items():
            yield CounterMetricFamily(f"sglang:{name}", name, value=total)
