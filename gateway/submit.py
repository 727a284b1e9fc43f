"""From a job file to a running job: checked against the schema, then against the world, then stored once.

Flow: parse -> paths and `job:` references made definite -> scheduler and reward asked at the same time whether model,
data and reward load -> the record is created. With an `Idempotency-Key` the key is claimed first, by compare-and-set
in the bucket `submissions`: whoever finds it claimed finishes that submission instead of making another.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gateway.errors import ApiError
from gateway.index import JobIndex
from gateway.jobs import find_job
from shared.job.load import BadJob, anchored, load_job
from shared.job.spec import JobSpec
from shared.wire import topics
from shared.wire.bus.api import Bus, Conflict, NoResponders, TimedOut
from shared.wire.jobs import create_job, get_job
from shared.wire.messages import CheckJob, CheckReply, JobRecord, Message, decode, digest, encode

KEY_LENGTH = 255


class Claim(Message, frozen=True, kw_only=True, tag_field="kind", tag="submission"):
    """In the bucket `submissions` under the sha256 of an idempotency key: the job it stands for."""

    job: str
    digest: str
    stored: bool = False  # the record was created: when it is gone, the job was deleted


@dataclass(frozen=True)
class Checked:
    """A job file that may run."""

    spec: JobSpec
    facts: dict[str, Any]

    @property
    def plain(self) -> dict[str, Any]:
        return self.spec.model_dump(mode="json")

    @property
    def digest(self) -> str:
        return digest(json.dumps(self.plain, sort_keys=True).encode())


class Submissions:
    """Checks and stores jobs."""

    def __init__(self, bus: Bus, index: JobIndex, check_seconds: float) -> None:
        self._bus = bus
        self._index = index
        self._check_seconds = check_seconds

    async def check(self, body: bytes, base: str | None) -> Checked:
        """The job in `body`, or `ApiError` 422 with every problem, or 503 when nobody can check it."""
        try:
            spec = await self._definite(load_job(body), base)
        except BadJob as error:
            raise unfit([(problem.path, problem.message) for problem in error.problems]) from error
        facts: dict[str, Any] = {}
        problems: list[tuple[str, str]] = []
        data, reward = await asyncio.gather(
            self._ask(topics.CHECK_DATA, "scheduler", spec), self._ask(topics.CHECK_REWARD, "reward", spec)
        )
        for answer in (data, reward):
            facts |= answer.facts
            problems += [(problem.path, problem.message) for problem in answer.problems]
        if problems:
            raise unfit(problems)
        return Checked(spec, facts)

    async def _definite(self, spec: JobSpec, base: str | None) -> JobSpec:
        if base:
            if not Path(base).is_absolute():
                raise unfit([("base", f"{base!r} is not an absolute folder")])
            spec = anchored(spec, Path(base))
        if spec.model.startswith("job:"):
            spec = spec.model_copy(update={"model": await self._parent(spec.model.removeprefix("job:"))})
        return spec

    async def _parent(self, reference: str) -> str:
        try:
            parent = await find_job(self._bus, self._index, reference)
        except ApiError as error:
            raise unfit([("model", f"job:{reference}: {error}")]) from error
        if parent.state != "completed":
            raise unfit(
                [("model", f"job:{reference}: {parent.id} is {parent.state}, only a completed job has a model")]
            )
        return f"job:{parent.id}"

    async def _ask(self, subject: str, service: str, spec: JobSpec) -> CheckReply:
        question = encode(CheckJob(spec=spec.model_dump(mode="json")))
        try:
            answer = await self._bus.request(subject, question, timeout_seconds=self._check_seconds)
        except NoResponders as error:
            text = f"no {service} is alive to check the job: start one (`slipstream ps` shows what runs)"
            raise ApiError(503, text) from error
        except TimedOut as error:
            text = f"the {service} did not finish checking the job in {self._check_seconds:g} s: its log says why"
            raise ApiError(503, text) from error
        return decode(CheckReply, answer)

    async def submit(self, body: bytes, base: str | None, key: str | None) -> tuple[JobRecord, bool]:
        """The job and whether this call created it."""
        if key is not None and not 1 <= len(key) <= KEY_LENGTH:
            raise ApiError(422, f"Idempotency-Key: 1 to {KEY_LENGTH} characters", [("Idempotency-Key", "bad length")])
        if key is None:
            return await self._create_new(await self.check(body, base)), True
        wanted = digest(f"{base or ''}\n".encode() + body)
        claims, name = self._bus.bucket(topics.SUBMISSIONS.name), digest(key.encode())
        entry = await claims.get(name)
        known = decode(Claim, entry.data) if entry is not None and entry.data is not None else None
        if known is not None:
            existing = await self._claimed(known, wanted, key)
            if existing is not None:
                return existing, False
        checked = await self.check(body, base)
        claim = Claim(job=new_id(checked.spec.name), digest=wanted)
        if known is None:
            try:
                await claims.create(name, encode(claim))
            except Conflict:
                entry = await claims.get(name)
                known = decode(Claim, entry.data) if entry is not None and entry.data is not None else claim
                existing = await self._claimed(known, wanted, key)
                if existing is not None:
                    return existing, False
        claim = known or claim
        created = await self._finish(claim, checked, key)
        await self._mark_stored(name, claim)
        return created

    async def _claimed(self, claim: Claim, wanted: str, key: str) -> JobRecord | None:
        """The job of an earlier submit with this key; None when that submit died before it stored the job."""
        if claim.digest != wanted:
            raise ApiError(409, f"Idempotency-Key {key!r} was used for another job file ({claim.job})")
        record = await get_job(self._bus, claim.job)
        if record is None and claim.stored:
            raise ApiError(409, f"Idempotency-Key {key!r} belongs to {claim.job}, which was deleted: use a new key")
        return record

    async def _finish(self, claim: Claim, checked: Checked, key: str) -> tuple[JobRecord, bool]:
        record = new_record(claim.job, checked, key)
        try:
            await create_job(self._bus, record)
        except Conflict:
            return await get_job(self._bus, claim.job) or record, False
        return record, True

    async def _mark_stored(self, name: str, claim: Claim) -> None:
        claims = self._bus.bucket(topics.SUBMISSIONS.name)
        entry = await claims.get(name)
        if entry is None or entry.data is None or decode(Claim, entry.data).stored:
            return
        try:
            await claims.update(name, encode(msgspec.structs.replace(claim, stored=True)), entry.revision)
        except Conflict:
            return  # another submit with the same key marked it

    async def _create_new(self, checked: Checked) -> JobRecord:
        while True:
            record = new_record(new_id(checked.spec.name), checked, "")
            try:
                await create_job(self._bus, record)
            except Conflict:  # 1 in 16 million a pair of jobs of one name
                continue
            return record


def unfit(problems: list[tuple[str, str]]) -> ApiError:
    first = "; ".join(f"{path}: {message}" if path else message for path, message in problems[:3])
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return ApiError(422, first + more, problems)


def new_id(name: str) -> str:
    return f"{name}-{secrets.token_hex(3)}"


def new_record(id: str, checked: Checked, key: str) -> JobRecord:
    now = time.time()
    return JobRecord(
        id=id, name=checked.spec.name, spec=checked.plain, digest=checked.digest, state="running", created_at=now,
        updated_at=now, idempotency_key=key, facts=checked.facts,
    )  # fmt: skip
