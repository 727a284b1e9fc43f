"""Every message that crosses a wire: one schema a message, MessagePack on the wire.

Arrays travel as raw little-endian bytes (token ids int32, log-probabilities float32, masks uint8), never as lists.
Each message carries its schema number; a reader that does not know the number sets the message aside (`BadMessage`).
Direction is said with each class: who writes it -> who reads it. Subjects are in `topics`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import msgpack
import msgspec
import numpy as np

MAX_DECODE_BYTES = 64 * 1024 * 1024
JOB_ID = re.compile(r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$")
TRAIN, EVAL, INTERACTIVE = "train", "eval", "interactive"
SAMPLE_CLASSES = (TRAIN, EVAL, INTERACTIVE)


class BadMessage(ValueError):
    """Bytes that are not the message they should be; the text says why, in one line."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message with its schema number; subclasses that change shape raise `SCHEMA`."""

    SCHEMA: ClassVar[int] = 1
    schema: int = 1


M = TypeVar("M")


def encode(message: Any) -> bytes:
    """A message as MessagePack; byte fields stay raw."""
    return msgpack.packb(msgspec.to_builtins(message, builtin_types=(bytes,)), use_bin_type=True)  # type: ignore[no-any-return]


def decode(kind: type[M], data: bytes) -> M:
    """The message of type `kind` in `data`.

    Raises `BadMessage` when the bytes are not MessagePack, are too long, lack or mistype a field, carry an unknown
    schema number, or break the message's own invariants (`check`).
    """
    if len(data) > MAX_DECODE_BYTES:
        raise BadMessage(f"{len(data)} bytes are over the limit of {MAX_DECODE_BYTES}")
    try:
        raw = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except Exception as error:  # msgpack raises several unrelated types for bad bytes
        raise BadMessage(f"not MessagePack: {type(error).__name__}: {error}") from error
    known = getattr(kind, "SCHEMA", None)
    if known is not None and isinstance(raw, dict) and raw.get("schema", known) != known:
        raise BadMessage(
            f"schema {raw.get('schema')!r} of {kind.__name__} is unknown here (this process knows {known})"
        )
    try:
        message = msgspec.convert(raw, type=kind)
    except (msgspec.ValidationError, ValueError) as error:
        name = getattr(kind, "__name__", str(kind))
        raise BadMessage(f"not a {name}: {error}") from error
    check = getattr(message, "check", None)
    if check is not None:
        check()
    return message


def digest(data: bytes) -> str:
    """sha256 of `data` in hex: the one digest used for rows, jobs, bodies and batches."""
    return hashlib.sha256(data).hexdigest()


def array(data: bytes, dtype: str) -> np.ndarray:
    """A read-only view of raw little-endian bytes; `dtype` is one of `<i4`, `<f4`, `u1`."""
    return np.frombuffer(data, dtype=dtype)


# --- identities -----------------------------------------------------------------------------------------------------


class Version(msgspec.Struct, frozen=True, order=True):
    """A published set of weights. `(step, epoch)` is never used twice; age counts steps only."""

    step: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.step}.{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> Version:
        step, dot, epoch = text.partition(".")
        if not (dot and step.isascii() and step.isdigit() and epoch.isascii() and epoch.isdigit()):
            raise BadMessage(f"{text!r} is not a version like 12.3 (step.epoch)")
        return cls(int(step), int(epoch))


class Attempt(msgspec.Struct, frozen=True, order=True):
    """One try at a sample: the scheduler's epoch and its counter; never reused."""

    epoch: int
    counter: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.counter}"

    @classmethod
    def parse(cls, text: str) -> Attempt:
        version = Version.parse(text)
        return cls(version.step, version.epoch)


class SampleKey(msgspec.Struct, frozen=True, order=True):
    """Which answer: fixed before generation. Evaluation samples live in numbered rounds beside the dense groups."""

    job: str
    group: int
    index: int
    eval_round: int | None = None

    @property
    def id(self) -> str:
        where = f"{self.group}/{self.index}"
        return f"{self.job}/{where}" if self.eval_round is None else f"{self.job}/eval-{self.eval_round}/{where}"

    @property
    def subject_tail(self) -> str:
        """The last tokens of its subject: `<group>.<index>`, or `eval.<round>.<group>.<index>`."""
        where = f"{self.group}.{self.index}"
        return where if self.eval_round is None else f"eval.{self.eval_round}.{where}"

    @classmethod
    def parse(cls, text: str) -> SampleKey:
        match = re.fullmatch(r"([a-z0-9-]+)/(?:eval-([0-9]+)/)?([0-9]+)/([0-9]+)", text, flags=re.ASCII)
        if match is None or not JOB_ID.match(match[1]):
            raise BadMessage(f"{text!r} is not a sample id like my-job-1a2b3c/12/0")
        return cls(match[1], int(match[3]), int(match[4]), None if match[2] is None else int(match[2]))


# --- trajectories and scores ----------------------------------------------------------------------------------------


class Span(msgspec.Struct, frozen=True):
    """Tokens `start..end` (end exclusive, offsets in the segment) were made by `version`; stamped by the engine."""

    start: int
    end: int
    version: str


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A run of tokens with one role. All arrays have one length, L.

    token_ids  int32 [L]
    mask       uint8 [L], 1 where the token is trained
    columns    name -> float32 [L], NaN where nothing was sampled. `raw` is log_softmax(logits / temperature);
               `behaviour` is the same renormalised over what top-p and top-k kept; equal when neither cuts.
               Other services may add columns (`reference`, `proximal`).
    spans      which version made which tokens; empty in a segment that was not sampled
    """

    role: str
    token_ids: bytes
    mask: bytes
    columns: dict[str, bytes] = {}
    spans: list[Span] = []

    @property
    def length(self) -> int:
        return len(self.token_ids) // 4

    def check(self) -> None:
        n = self.length
        if len(self.token_ids) % 4 or len(self.mask) != n:
            raise BadMessage(f"{len(self.token_ids)} bytes of int32 ids and {len(self.mask)} of mask disagree")
        for name, column in self.columns.items():
            if len(column) != 4 * n:
                raise BadMessage(f"column {name!r} has {len(column)} bytes for {n} tokens")
        end = 0
        for span in self.spans:
            if not end <= span.start < span.end <= n:
                raise BadMessage(f"version span {span.start}..{span.end} does not fit {n} tokens in order")
            Version.parse(span.version)
            end = span.end
        if any(self.mask):
            covered = np.zeros(n, dtype=bool)
            for span in self.spans:
                covered[span.start : span.end] = True
            if self.spans and not covered[array(self.mask, "u1") != 0].all():
                raise BadMessage("a trained token has no version")


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer is drawn. The seed is a function of job seed, sample id and position, never of the attempt."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 64
    stop: list[str] = []
    stop_token_ids: list[int] = []
    seed: int = 0


class Digests(msgspec.Struct, frozen=True, kw_only=True):
    """What the sample was made from; sha256 in hex, empty when there is no such thing."""

    model: str = ""
    tokenizer: str = ""
    template: str = ""
    row: str = ""
    job: str = ""


class Trajectory(Message, frozen=True, kw_only=True, tag_field="kind", tag="trajectory"):
    """What one attempt produced. rollout -> reward. Finished once the broker has acknowledged it."""

    sample: str
    attempt: Attempt
    sample_class: str = TRAIN
    policy: str = "policy"
    adapter: str = ""
    segments: list[Segment]
    sampling: Sampling
    finish_reason: str
    text: str = ""
    worker: str
    started_at: float
    finished_at: float
    digests: Digests
    row: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    objects: dict[str, str] = {}

    @property
    def key(self) -> SampleKey:
        return SampleKey.parse(self.sample)

    def trained_versions(self) -> list[int]:
        """Steps of the versions that made its trained tokens, oldest first; empty for a demonstration."""
        steps = set()
        for segment in self.segments:
            mask = array(segment.mask, "u1")
            for span in segment.spans:
                if mask[span.start : span.end].any():
                    steps.add(Version.parse(span.version).step)
        return sorted(steps)

    def trained_tokens(self) -> int:
        return sum(int(array(segment.mask, "u1").sum(dtype=np.int64)) for segment in self.segments)

    def check(self) -> None:
        SampleKey.parse(self.sample)
        if self.sample_class not in SAMPLE_CLASSES:
            raise BadMessage(f"sample_class {self.sample_class!r} is none of {', '.join(SAMPLE_CLASSES)}")
        if not self.segments:
            raise BadMessage("a trajectory without a segment")
        for segment in self.segments:
            segment.check()
        if self.trained_tokens() == 0:
            raise BadMessage("a trajectory without a trained token")


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """What a trajectory is worth. `valid` false means: not graded, and never to be read as reward 0."""

    components: dict[str, float] = {}
    weights: dict[str, float] = {}
    total: float = 0.0
    valid: bool = True
    error: str = ""
    code_digest: str = ""
    per_token: bytes = b""
    graded_by: str = ""
    seconds: float = 0.0


class Scored(Message, frozen=True, kw_only=True, tag_field="kind", tag="scored"):
    """A trajectory with its score. reward -> replay-buffer (headers), trainer (body). `trajectory` is encoded."""

    trajectory: bytes
    score: Score


def body_headers(trajectory: Trajectory) -> dict[str, str]:
    """What a reader may know of a trajectory without its body; joined with `score_headers` on a scored message."""
    versions = trajectory.trained_versions()
    return {
        "Sample": trajectory.sample,
        "Attempt": str(trajectory.attempt),
        "Sample-Class": trajectory.sample_class,
        "Oldest-Step": str(versions[0]) if versions else "",
        "Tokens": str(trajectory.trained_tokens()),
        "Worker": trajectory.worker,
    }


def score_headers(score: Score, body: bytes) -> dict[str, str]:
    """`Valid`, `Reward` and the digest of the scored message's body."""
    return {"Valid": "1" if score.valid else "0", "Reward": repr(float(score.total)), "Digest": digest(body)}


def message_id(sample: str, attempt: Attempt) -> str:
    """`<sample>/<attempt>`: with the sample alone, a redo inside the broker's window would be stored nowhere."""
    return f"{sample}/{attempt}"


# --- the ledger -----------------------------------------------------------------------------------------------------


class Record(Message, frozen=True, kw_only=True, tag_field="record"):
    """A ledger record. `epoch` is the epoch of the writer's role, so that readers may recognise a fenced writer."""

    epoch: int
    at: float = 0.0


class EpochOpened(Record, frozen=True, kw_only=True, tag="epoch"):
    """A holder of `role` begins; every older holder of the role stops. Epochs of a role count 1, 2, 3 ..."""

    role: str
    holder: str


class Issued(Record, frozen=True, kw_only=True, tag="issued"):
    """scheduler: a group exists, before any of its tokens do. `version_step`: the newest step applied by then."""

    group: int
    row: int
    row_digest: str
    n: int
    version_step: int


class Requeued(Record, frozen=True, kw_only=True, tag="requeued"):
    """scheduler: an attempt ended without a trajectory and the sample waits again."""

    sample: str
    attempt: Attempt
    reason: str
    worker: str = ""
    counts: bool = True  # false: the lease was only returned (drain), which is no failure


class GaveUp(Record, frozen=True, kw_only=True, tag="gave_up"):
    """scheduler: `max_attempts` failed; proposes `dead` to the buffer."""

    sample: str
    error: str
    attempts: list[str]


class BatchedSample(msgspec.Struct, frozen=True, kw_only=True):
    """One use of one sample in a batch. `sequence` is its place in the scored stream."""

    sample: str
    attempt: Attempt
    sequence: int
    digest: str
    reward: float
    use: int = 1
    oldest_step: int = -1
    tokens: int = 0
    masked: str = ""


class Batched(Record, frozen=True, kw_only=True, tag="batched"):
    """replay-buffer: the batch of `step`, in (group, index) order. The hand-over is this record."""

    step: int
    trainer_epoch: int
    samples: list[BatchedSample]


class Trained(Record, frozen=True, kw_only=True, tag="trained"):
    """trainer: steps `first..last` are in a checkpoint that reads back whole. `epoch` is the trainer's."""

    first: int
    last: int
    digest: str
    checkpoint: str
    oldest_kept_step: int
    masked: list[str] = []


class Dropped(Record, frozen=True, kw_only=True, tag="dropped"):
    """replay-buffer: settled without training, with the reason (`stale`, `sibling dead`, `job ended`, ...)."""

    samples: list[str]
    reason: str


class Dead(Record, frozen=True, kw_only=True, tag="dead"):
    """replay-buffer: settled after `max_attempts` failures that were not the model's."""

    samples: list[str]
    errors: list[str]


class Retired(Record, frozen=True, kw_only=True, tag="retired"):
    """replay-buffer: the samples batched in steps `first..last` have had all their uses."""

    first: int
    last: int


class Ending(Record, frozen=True, kw_only=True, tag="ending"):
    """scheduler: `last_step` is the job's last (an early stop); the buffer forms no batch beyond it."""

    last_step: int
    reason: str


LedgerRecord = EpochOpened | Issued | Requeued | GaveUp | Batched | Trained | Dropped | Dead | Retired | Ending

LEDGER_ROLES = ("scheduler", "replay-buffer", "trainer")


_RECORDS: msgspec.msgpack.Decoder[LedgerRecord] = msgspec.msgpack.Decoder(LedgerRecord)


def decode_record(data: bytes) -> LedgerRecord:
    """One ledger record; `BadMessage` for an unknown kind or schema.

    A decoder made once, since a role's holder reads every record of a job when it begins: a million in seconds.
    """
    if len(data) > MAX_DECODE_BYTES:
        raise BadMessage(f"{len(data)} bytes are over the limit of {MAX_DECODE_BYTES}")
    try:
        record = _RECORDS.decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise BadMessage(f"not a ledger record: {error}") from error
    if record.schema != record.SCHEMA:
        kind = type(record).__name__
        raise BadMessage(f"schema {record.schema!r} of {kind} is unknown here (this process knows {record.SCHEMA})")
    return record


def batch_digest(batches: Iterable[Batched]) -> str:
    """The digest that a checkpoint and its `trained` record share: over (step, id, use, attempt, sequence)."""
    h = hashlib.sha256()
    for batch in batches:
        for s in batch.samples:
            h.update(f"{batch.step} {s.sample} {s.use} {s.attempt} {s.sequence} {s.digest}\n".encode())
    return h.hexdigest()


# --- leases ---------------------------------------------------------------------------------------------------------


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's right to a sample until `deadline_seconds` after the last progress it reported."""

    sample: str
    attempt: Attempt
    sample_class: str = TRAIN
    prefix: list[Segment]
    sampling: Sampling
    deadline_seconds: float
    digests: Digests
    row: dict[str, Any] = {}
    policy: str = "policy"
    adapter: str = ""
    ask_sampling_mask: bool = False


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that the worker still works on, and how many tokens it has."""

    sample: str
    attempt: Attempt
    tokens: int = 0


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that the worker is done with. `error` empty: its trajectory is stored."""

    sample: str
    attempt: Attempt
    error: str = ""
    counts: bool = True


class AskLeases(Message, frozen=True, kw_only=True, tag_field="kind", tag="ask_leases"):
    """rollout -> scheduler, request on `lease.<job>`; also the worker's sign of life (every second while it holds)."""

    worker: str
    job: str
    version: str  # what its engine has proved to hold for this job; empty: nothing yet
    slots: int
    free_slots: int
    held: list[Held] = []
    ended: list[Ended] = []
    cached_prompts: list[str] = []
    draining: bool = False


class GrantLeases(Message, frozen=True, kw_only=True, tag_field="kind", tag="grant_leases"):
    """scheduler -> rollout, the reply. `pin_version`: load exactly this one until told otherwise (evaluation)."""

    scheduler_epoch: int
    leases: list[Lease] = []
    revoked: list[Held] = []
    pin_version: str = ""
    waiting: int = 0
    engine_dtype: str = "auto"
    deterministic: bool = False
    context_length: int = 0
    ask_again_seconds: float = 0.5


# --- batches, weights -----------------------------------------------------------------------------------------------


class AskBatch(Message, frozen=True, kw_only=True, tag_field="kind", tag="ask_batch"):
    """trainer -> replay-buffer, request on `batch.<job>`."""

    trainer_epoch: int
    step: int


class BatchReply(Message, frozen=True, kw_only=True, tag_field="kind", tag="batch_reply"):
    """replay-buffer -> trainer. `ready`: the record stands in the ledger at `sequence`; `wait`; `refused` (fenced)."""

    status: str
    sequence: int = 0
    reason: str = ""
    complete_groups: int = 0


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a version's folder."""

    name: str
    size: int
    sha256: str


class Snapshot(Message, frozen=True, kw_only=True, tag_field="kind", tag="snapshot"):
    """trainer -> weight-broadcast, last value on `snapshot.<job>`: a complete Hugging Face folder lies at `path`.

    `path` is relative to the data folder that trainer and weight-broadcast share.
    """

    job: str
    version: Version
    path: str
    files: list[FileEntry]


class Weights(Message, frozen=True, kw_only=True, tag_field="kind", tag="weights"):
    """weight-broadcast -> rollout, trainer, scheduler: last value on `weights.<job>`, expected last sequence checked.

    A reader on host `host` reads the files under `local_path`; others GET `<url>/<name>` for each url in turn.
    `kept`: the versions that can still be fetched, this one included. `durable_step`: newest step in a checkpoint.
    """

    job: str
    version: Version
    files: list[FileEntry]
    host: str
    local_path: str
    urls: list[str]
    kept: list[Version] = []
    durable_step: int = -1


# --- jobs, events, presence, checks ---------------------------------------------------------------------------------


JOB_STATES = ("running", "pausing", "paused", "cancelling", "cancelled", "completed", "failed", "deleting")
ENDED_STATES = ("cancelled", "completed", "failed")


class JobRecord(Message, frozen=True, kw_only=True, tag_field="kind", tag="job"):
    """The job in the KV bucket `jobs`, changed only by compare-and-set. gateway and scheduler -> everyone."""

    id: str
    name: str
    spec: dict[str, Any]  # the validated job file, defaults filled in (shared.job.JobSpec)
    digest: str
    state: str
    reason: str = ""
    created_at: float
    updated_at: float
    idempotency_key: str = ""
    facts: dict[str, Any] = {}  # what the checks found: rows, held-out rows removed, model digest, context length


class Event(Message, frozen=True, kw_only=True, tag_field="kind", tag="event"):
    """Any service -> gateway, stream `events`: what a person watches. Never decides anything.

    kinds: `state`, `step`, `evaluation`, `progress`, `notice`.
    """

    job: str
    event: str
    at: float
    step: int = -1
    body: dict[str, Any] = {}


class Presence(Message, frozen=True, kw_only=True, tag_field="kind", tag="presence"):
    """Every service -> gateway, core subject `presence.<service>.<id>`, every two seconds; `gauges` feed /metrics."""

    service: str
    id: str
    host: str
    pid: int
    started_at: float
    state: str = "ready"
    gauges: dict[str, float] = {}
    detail: dict[str, Any] = {}


class CheckJob(Message, frozen=True, kw_only=True, tag_field="kind", tag="check_job"):
    """gateway -> scheduler (`check.data`), reward (`check.reward`): does the job fit the world?"""

    spec: dict[str, Any]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong at `path` of the job file (dots), and what would be right."""

    path: str
    message: str


class CheckReply(Message, frozen=True, kw_only=True, tag_field="kind", tag="check_reply"):
    """The answer to `CheckJob`; no problems: fine. `facts` are shown to the user and kept in the job record."""

    problems: list[Problem] = []
    facts: dict[str, Any] = {}


def to_plain(message: Any) -> Mapping[str, Any]:
    """A message as JSON-able builtins (bytes as base64)."""
    return msgspec.to_builtins(message)  # type: ignore[no-any-return]
