"""Creating the declared streams, consumers and buckets, and comparing those that are there already."""

from __future__ import annotations

from typing import Any

from shared.wire.bus.api import BusError, Drift, NotFound
from shared.wire.bus.drift import differences
from shared.wire.bus.jetstream import NANOSECONDS, JetStream
from shared.wire.topics import Bucket, Consumer, Stream

EXISTS = (10058, 10148)  # a stream or consumer of that name, made otherwise, perhaps since we looked
DUPLICATE_WINDOW_SECONDS = 120.0


def stream_config(stream: Stream) -> dict[str, Any]:
    return {
        "name": stream.name,
        "subjects": list(stream.subjects),
        "retention": stream.retention,
        "storage": "file",
        "discard": "new" if stream.discard_new else "old",
        "max_bytes": stream.max_bytes,
        "max_msgs": -1,
        "max_age": 0,
        "max_msgs_per_subject": stream.max_messages_per_subject,
        "duplicate_window": int(stream.duplicate_window_seconds * NANOSECONDS),
        "deny_delete": stream.deny_delete,
        "deny_purge": stream.deny_delete,
        "allow_direct": True,
        "num_replicas": 1,
    }


def bucket_config(bucket: Bucket) -> dict[str, Any]:
    max_age = int(bucket.ttl_seconds * NANOSECONDS)
    window = int(DUPLICATE_WINDOW_SECONDS * NANOSECONDS)
    return {
        "name": bucket_stream(bucket.name),
        "subjects": [f"$KV.{bucket.name}.>"],
        "retention": "limits",
        "storage": "memory" if bucket.memory else "file",
        "discard": "new",
        "max_bytes": -1,
        "max_msgs": -1,
        "max_age": max_age,
        "max_msgs_per_subject": bucket.history,
        "duplicate_window": min(window, max_age) if max_age else window,
        "deny_delete": True,
        "deny_purge": False,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "num_replicas": 1,
    }


def consumer_config(consumer: Consumer) -> dict[str, Any]:
    config = {
        "durable_name": consumer.name,
        "name": consumer.name,
        "ack_policy": "explicit",
        "ack_wait": int(consumer.ack_wait_seconds * NANOSECONDS),
        "max_ack_pending": consumer.max_ack_pending,
        "max_deliver": -1,
        "deliver_policy": "all",
        "replay_policy": "instant",
        "num_replicas": 0,
    }
    if consumer.filter_subject:
        config["filter_subject"] = consumer.filter_subject
    return config


def bucket_stream(bucket: str) -> str:
    return f"KV_{bucket}"


async def declare_stream(jetstream: JetStream, what: str, config: dict[str, Any]) -> None:
    """Create it, or find it as it should be, or raise `Drift`."""
    try:
        have = (await jetstream.stream_info(config["name"]))["config"]
    except NotFound:
        reply = await _create(jetstream, f"STREAM.CREATE.{config['name']}", config, what)
        have = reply["config"] if reply else (await jetstream.stream_info(config["name"]))["config"]
    _compare(what, have, config)


async def declare_consumer(jetstream: JetStream, stream: str, consumer: Consumer) -> None:
    what = f"consumer {consumer.name} of stream {stream}"
    config = consumer_config(consumer)
    try:
        have = (await jetstream.consumer_info(stream, consumer.name))["config"]
    except NotFound:
        subject = f"CONSUMER.CREATE.{stream}.{consumer.name}"
        if consumer.filter_subject:
            subject += f".{consumer.filter_subject}"
        body = {"stream_name": stream, "config": config, "action": "create"}
        reply = await _create(jetstream, subject, body, what)
        have = reply["config"] if reply else (await jetstream.consumer_info(stream, consumer.name))["config"]
    _compare(what, have, config)


async def _create(jetstream: JetStream, subject: str, body: dict[str, Any], what: str) -> dict[str, Any] | None:
    """The server's reply; None when another process was faster."""
    try:
        return await jetstream.ask(subject, body, what)
    except BusError as error:
        if any(str(error).endswith(f"({code})") for code in EXISTS):
            return None
        raise


def _compare(what: str, have: dict[str, Any], want: dict[str, Any]) -> None:
    # The server leaves out what is empty or false, and says -1 or 0 for "no limit" as it likes.
    known = {name: have.get(name, type(value)()) for name, value in want.items()}
    found = differences(_unlimited(known), _unlimited(want))
    if found:
        raise Drift(f"{what} differs from its declaration: {'; '.join(found)}")


def _unlimited(config: dict[str, Any]) -> dict[str, Any]:
    limits = ("max_bytes", "max_msgs", "max_msgs_per_subject", "max_deliver", "num_replicas")
    return {name: max(value, 0) if name in limits else value for name, value in config.items()}
