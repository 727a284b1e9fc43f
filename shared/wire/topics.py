"""Every arrow between services, one line each: subject, message, who -> who.

The streams and consumers behind the subjects are declared here and nowhere else; `Bus.declare` compares them with the
server at start, and drift is an error that says what differs.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.messages import JOB_ID, BadMessage, SampleKey

# subject                                   message       who -> who
#
# ledger.<job>.<role>                       LedgerRecord  scheduler, replay-buffer, trainer -> all of them, gateway
# lease.<job>                    (request)  AskLeases     rollout -> scheduler, answered by GrantLeases
# trajectory.<job>.<group>.<index>          Trajectory    rollout -> reward
# scored.<job>.<group>.<index>              Scored        reward -> replay-buffer, trainer
# scored.<job>.eval.<round>.<group>.<index> Scored        reward -> scheduler (evaluation)
# batch.<job>                    (request)  AskBatch      trainer -> replay-buffer, answered by BatchReply
# snapshot.<job>               (last value) Snapshot      trainer -> weight-broadcast
# weights.<job>                (last value) Weights       weight-broadcast -> rollout, trainer, scheduler
# events.<job>.<kind>                       Event         everyone -> gateway
# presence.<service>.<id>            (core) Presence      everyone -> gateway
# check.data, check.reward       (request)  CheckJob      gateway -> scheduler, reward, answered by CheckReply
# objects.<job>.<sha256>.<chunk>            bytes         the bus -> the bus: bodies over the inline limit
# KV jobs: <job>                            JobRecord     gateway, scheduler -> everyone
# KV locks: <role>.<job>                    holder        one holder a role and job; saves work, decides nothing
# KV submissions: <sha256 of a key>         Claim         gateway -> gateway: which job an Idempotency-Key stands for

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class Consumer:
    """A durable pull consumer."""

    name: str
    ack_wait_seconds: float = 30.0
    max_ack_pending: int = 1024
    filter_subject: str = ""


@dataclass(frozen=True)
class Stream:
    """A stream: file storage, never aged, discard new."""

    name: str
    subjects: tuple[str, ...]
    retention: str = "limits"  # or "workqueue"
    max_bytes: int = -1
    max_messages_per_subject: int = -1
    deny_delete: bool = False
    consumers: tuple[Consumer, ...] = ()
    duplicate_window_seconds: float = 120.0
    discard_new: bool = True


@dataclass(frozen=True)
class Bucket:
    """A key-value bucket. `ttl_seconds` 0: kept. Only locks may be lost, so only they sit in memory."""

    name: str
    history: int = 1
    ttl_seconds: float = 0.0
    memory: bool = False


JOBS = Bucket("jobs", history=8)
LOCKS = Bucket("locks", ttl_seconds=3.0, memory=True)
SUBMISSIONS = Bucket("submissions", ttl_seconds=24 * 3600.0)
EVENTS = Stream("events", ("events.>",), max_bytes=512 * MEBIBYTE, discard_new=False)
SNAPSHOTS = Stream("snapshots", ("snapshot.*",), max_messages_per_subject=1, discard_new=False)
WEIGHTS = Stream("weights", ("weights.*",), max_messages_per_subject=1, discard_new=False)

SHARED_STREAMS = (EVENTS, SNAPSHOTS, WEIGHTS)
BUCKETS = (JOBS, LOCKS, SUBMISSIONS)

REWARD_CONSUMER = "reward"
CHECK_DATA, CHECK_REWARD = "check.data", "check.reward"


def checked(job: str) -> str:
    """`job` if it may stand in a subject and a file name; `BadMessage` otherwise."""
    if not JOB_ID.match(job):
        raise BadMessage(f"{job!r} is not a job id (lower-case letters, digits and dashes, at most 63)")
    return job


def ledger(job: str) -> Stream:
    return Stream(f"ledger-{checked(job)}", (f"ledger.{job}.*",), deny_delete=True)


def trajectories(job: str, max_bytes: int = -1) -> Stream:
    return Stream(
        f"trajectory-{checked(job)}",
        (f"trajectory.{job}.>",),
        retention="workqueue",
        max_bytes=max_bytes,
        consumers=(Consumer(REWARD_CONSUMER, ack_wait_seconds=8.0),),  # a dead grader costs its samples so long
    )


def scored(job: str, max_bytes: int = -1) -> Stream:
    return Stream(f"scored-{checked(job)}", (f"scored.{job}.>",), max_bytes=max_bytes)


def objects(job: str, max_bytes: int = -1) -> Stream:
    """Bodies over the inline limit, in chunks `objects.<job>.<sha256>.<n>`; the bus writes and reads them."""
    return Stream(f"objects-{checked(job)}", (f"objects.{job}.>",), max_bytes=max_bytes, max_messages_per_subject=1)


def job_streams(job: str, max_bytes: int = -1) -> tuple[Stream, ...]:
    """What a job owns on the broker: the scheduler declares it before the job's first record, and deletes it."""
    return (ledger(job), trajectories(job, max_bytes), scored(job, max_bytes), objects(job, max_bytes))


def ledger_subject(job: str, role: str) -> str:
    return f"ledger.{checked(job)}.{role}"


def trajectory_subject(key: SampleKey) -> str:
    return f"trajectory.{checked(key.job)}.{key.subject_tail}"


def scored_subject(key: SampleKey) -> str:
    return f"scored.{checked(key.job)}.{key.subject_tail}"


def scored_train_filter(job: str) -> str:
    """Exactly the training samples: evaluation subjects have two tokens more."""
    return f"scored.{checked(job)}.*.*"


def scored_eval_filter(job: str) -> str:
    return f"scored.{checked(job)}.eval.*.*.*"


def lease_subject(job: str) -> str:
    return f"lease.{checked(job)}"


def batch_subject(job: str) -> str:
    return f"batch.{checked(job)}"


def snapshot_subject(job: str) -> str:
    return f"snapshot.{checked(job)}"


def weights_subject(job: str) -> str:
    return f"weights.{checked(job)}"


def event_subject(job: str, kind: str) -> str:
    return f"events.{checked(job)}.{kind}"


def presence_subject(service: str, id: str) -> str:
    return f"presence.{service}.{id}"


def lock_key(role: str, job: str) -> str:
    return f"{role}.{checked(job)}"
