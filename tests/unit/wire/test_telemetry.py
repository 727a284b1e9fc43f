"""One record a line, and a heartbeat that says who lives."""

from __future__ import annotations

import asyncio
import json
import logging
import sys

from shared.wire.bus.memory import MemoryBus
from shared.wire.messages import Presence, decode
from shared.wire.telemetry import JsonLines, PlainLines, heartbeat


def record(message: str, error: BaseException | None = None) -> logging.LogRecord:
    trace = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("shared.x", logging.WARNING, __file__, 1, message, None, trace)


def test_a_plain_line_has_time_level_service_and_message():
    line = PlainLines("reward").format(record("all is well"))
    time, level, service, rest = line.split(" ", 3)
    assert (level, service, rest) == ("WARNING", "reward", "all is well")
    assert time[10] == "T" and time[-4] == "."


def test_a_json_line_is_an_object_with_its_trace():
    try:
        raise ValueError("broken")
    except ValueError:
        error = sys.exc_info()[1]
    line = JsonLines("reward").format(record("failed", error))
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["service"], fields["level"], fields["message"]) == ("reward", "warning", "failed")
    assert "ValueError: broken" in fields["trace"]


async def test_the_heartbeat_carries_state_and_gauges():
    bus = MemoryBus()
    heard: list[Presence] = []

    async def hear(stored):
        heard.append(decode(Presence, stored.data))

    await bus.listen("presence.>", hear)
    gauges, detail = {"queue": 3.0}, {"url": "x"}
    beating = asyncio.create_task(heartbeat(bus, "reward", "reward-1", lambda: "stopping", gauges, detail))
    async with asyncio.timeout(5):
        while not heard:
            await asyncio.sleep(0.005)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    await bus.close()
    assert (heard[0].service, heard[0].id, heard[0].state, heard[0].gauges) == (
        "reward",
        "reward-1",
        "stopping",
        {"queue": 3.0},
    )
