"""The Python client: everything that the HTTP API can do, as plain calls that return plain data.

    from slipstream import Client
    job = Client().submit_file("job.yaml")
    for event in client.events(job["id"]): ...

Imports httpx and nothing of the services, so that a script starts fast. Errors are in `client_errors`.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

from gateway.client_errors import Invalid, Unreachable, refusal
from gateway.sse import HEARTBEAT, Heartbeat, JobEvent, Lines

DEFAULT_URL = "http://127.0.0.1:8400"
ENDED = ("completed", "failed", "cancelled")
SUBMIT_SECONDS = 330.0  # model and data are loaded before the answer
AUDIT_SECONDS = 900.0  # reads the whole ledger
SILENCE_SECONDS = 35.0  # the gateway says something every ten seconds
RECONNECT_SECONDS = 0.5
Json = dict[str, Any]


class Client:
    """A connection to one gateway: `url`, else SLIPSTREAM_URL, else this machine."""

    def __init__(
        self, url: str | None = None, *, timeout_seconds: float = 30.0, patience_seconds: float = 60.0
    ) -> None:
        self.url = (url or os.environ.get("SLIPSTREAM_URL") or DEFAULT_URL).rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise Invalid(f"{self.url!r} is no address: write it as in {DEFAULT_URL}", 422, [])
        self._timeout = timeout_seconds
        self._patience = patience_seconds
        self._http = httpx.Client(base_url=self.url, timeout=timeout_seconds)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    # --- jobs -------------------------------------------------------------------------------------------------------

    def submit(self, job_file: str, *, base: str | None = None, key: str | None = None) -> Json:
        """Submit the text of a job file. `base`: folder of its relative paths. Same `key`, same file: one job."""
        headers = {"Idempotency-Key": key or str(uuid.uuid4()), "Content-Type": "application/yaml"}
        return self._json(
            "POST", "/v1/jobs", content=job_file.encode(), params=_given(base=base), headers=headers,
            timeout=SUBMIT_SECONDS,
        )  # fmt: skip

    def submit_file(self, path: str | Path, *, key: str | None = None) -> Json:
        """Submit a job file; relative paths in it start from its folder."""
        return self.submit(read_job_file(path), base=str(Path(path).resolve().parent), key=key)

    def validate(self, job_file: str, *, base: str | None = None) -> Json:
        """All checks of `submit` without running: `spec` as it would run, `facts` that were found."""
        return self._json(
            "POST", "/v1/jobs:validate", content=job_file.encode(), params=_given(base=base), timeout=SUBMIT_SECONDS
        )

    def validate_file(self, path: str | Path) -> Json:
        return self.validate(read_job_file(path), base=str(Path(path).resolve().parent))

    def jobs(self, *, state: str | None = None, name: str | None = None, limit: int | None = None) -> Iterator[Json]:
        """Every job, newest first, page by page."""
        cursor, given = None, 0
        while True:
            size = 500 if limit is None else min(500, limit - given)
            if size <= 0:
                return
            page = self._json("GET", "/v1/jobs", params=_given(limit=size, cursor=cursor, state=state, name=name))
            yield from page["jobs"]
            given += len(page["jobs"])
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def job(self, job: str) -> Json:
        """A job by its id, the only beginning of one, or its name (the newest)."""
        return self._json("GET", _path(job))

    def status(self, job: str) -> Json:
        """The job with its newest progress, newest step, evaluations, and which services are alive."""
        return self._json("GET", _path(job, "status"))

    def pause(self, job: str) -> Json:
        return self._json("POST", _path(job, "pause"))

    def resume(self, job: str) -> Json:
        return self._json("POST", _path(job, "resume"))

    def cancel(self, job: str) -> Json:
        return self._json("POST", _path(job, "cancel"))

    def delete(self, job: str) -> Json:
        """Mark the job for deletion with all its data; it is gone once `job()` raises `NotFound`."""
        return self._json("DELETE", _path(job))

    # --- reading ----------------------------------------------------------------------------------------------------

    def metrics(self, job: str, *, from_step: int = 0) -> Json:
        """`steps`: one row a step; `evaluations`."""
        return self._json("GET", _path(job, "metrics"), params={"from_step": from_step})

    def samples(
        self,
        job: str,
        *,
        sample_class: str | None = None,
        step: int | None = None,
        limit: int = 20,
        before: int | None = None,
    ) -> Json:
        """A page of `samples`, newest first; `next_before` continues."""
        params = _given(sample_class=sample_class, step=step, limit=limit, before=before)
        return self._json("GET", _path(job, "samples"), params=params, timeout=AUDIT_SECONDS)

    def sample(self, sample: str) -> Json:
        """The whole life of a sample by its id, as in my-job-1a2b3c/12/0 or my-job-1a2b3c/eval-1/12/0."""
        parts = sample.split("/")
        evaluated = len(parts) == 4 and parts[1].startswith("eval-")
        if not (len(parts) == 3 or evaluated) or not all(part.isdigit() for part in parts[-2:]):
            raise Invalid(f"{sample!r} is not a sample id like my-job-1a2b3c/12/0", 422, [])
        eval_round = parts[1].removeprefix("eval-") if evaluated else None
        path = _path(parts[0], "samples", parts[-2], parts[-1])
        return self._json("GET", path, params=_given(eval_round=eval_round), timeout=AUDIT_SECONDS)

    def audit(self, job: str) -> Json:
        """The ledger's balance; `balanced` is what to look at, `problems` says what is wrong."""
        return self._json("GET", _path(job, "audit"), timeout=AUDIT_SECONDS)

    def ledger(self, job: str) -> Iterator[Json]:
        """Every record, in order."""
        sequence: int | None = 1
        while sequence is not None:
            page = self._json("GET", _path(job, "ledger"), params={"from_sequence": sequence}, timeout=AUDIT_SECONDS)
            yield from page["records"]
            sequence = page["next_sequence"]

    def files(self, job: str, *, checkpoint: str | None = None) -> Json:
        """The files of the newest durable model."""
        return self._json("GET", _path(job, "files"), params=_given(checkpoint=checkpoint))

    def export(self, job: str, directory: str | Path, *, checkpoint: str | None = None) -> Json:
        """Download the trained model into a new folder that `transformers` loads."""
        from gateway.download import export

        return export(self, self._http, job, Path(directory), checkpoint)

    # --- watching ---------------------------------------------------------------------------------------------------

    def wait(self, job: str, *, timeout_seconds: float | None = None) -> Json:
        """The job once it has ended; `TimeoutError` when it has not by then."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        pause = 0.2
        while True:
            found = self.job(job)
            if found["state"] in ENDED:
                return found
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{found['id']} is still {found['state']}")
            time.sleep(pause)
            pause = min(2.0, pause * 1.5)

    def events(self, job: str, *, after: int = 0) -> Iterator[JobEvent]:
        """What happens, from the first event or after one; comes back by itself when the connection breaks.

        Ends when the job is deleted.
        """
        for item in self.beats(job, after=after):
            if isinstance(item, JobEvent):
                yield item

    def past_events(self, job: str, *, after: int = 0) -> Iterator[JobEvent]:
        """The events so far, oldest first."""
        while True:
            page = self._get_list(_path(job, "events:past"), {"after": after, "limit": 1000})
            for fields in page:
                yield JobEvent(**fields)
                after = int(fields["id"])
            if len(page) < 1000:
                return

    def beats(self, job: str, *, after: int = 0) -> Iterator[JobEvent | Heartbeat]:
        """`events`, with a heartbeat in every silence."""
        lines, broken_since = Lines(), None
        lines.last_id = after
        while True:
            try:
                with self._http.stream("GET", _path(job, "events"), **_resume(lines.last_id)) as response:
                    if response.status_code != 200:
                        response.read()
                        raise refusal(response.status_code, _body(response))
                    broken_since = None
                    for line in response.iter_lines():
                        item = lines.feed(line)
                        if isinstance(item, JobEvent) and item.event == "gone":
                            return
                        if item is not None:
                            yield item
            except httpx.TransportError as error:
                broken_since = broken_since or time.monotonic()
                if time.monotonic() - broken_since > self._patience:
                    raise self._unreachable(error) from error
            yield HEARTBEAT
            time.sleep(RECONNECT_SECONDS)

    async def async_events(self, job: str, *, after: int = 0) -> AsyncIterator[JobEvent]:
        """`events` for asyncio."""
        import asyncio

        lines, broken_since = Lines(), None
        lines.last_id = after
        async with httpx.AsyncClient(base_url=self.url) as http:
            while True:
                try:
                    async with http.stream("GET", _path(job, "events"), **_resume(lines.last_id)) as response:
                        if response.status_code != 200:
                            await response.aread()
                            raise refusal(response.status_code, _body(response))
                        broken_since = None
                        async for line in response.aiter_lines():
                            item = lines.feed(line)
                            if isinstance(item, JobEvent):
                                if item.event == "gone":
                                    return
                                yield item
                except httpx.TransportError as error:
                    broken_since = broken_since or time.monotonic()
                    if time.monotonic() - broken_since > self._patience:
                        raise self._unreachable(error) from error
                await asyncio.sleep(RECONNECT_SECONDS)

    # --- the wire ---------------------------------------------------------------------------------------------------

    def _json(self, method: str, path: str, *, timeout: float | None = None, **options: Any) -> Json:
        body = self._answer(method, path, timeout or self._timeout, options)
        if not isinstance(body, dict):
            raise refusal(502, {"error": f"{self.url} answered with something that no gateway says"})
        return body

    def _get_list(self, path: str, params: dict[str, Any]) -> list[Json]:
        body = self._answer("GET", path, self._timeout, {"params": params})
        if not isinstance(body, list):
            raise refusal(502, {"error": f"{self.url} answered with something that no gateway says"})
        return body

    def _answer(self, method: str, path: str, timeout: float, options: dict[str, Any]) -> Any:
        try:
            response = self._http.request(method, path, timeout=timeout, **options)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        body = _body(response)
        if not response.is_success:
            raise refusal(response.status_code, body)
        return body

    def _unreachable(self, error: Exception) -> Unreachable:
        said = str(error) or type(error).__name__
        return Unreachable(f"no answer from the gateway at {self.url}: {said} (is it up? `slipstream up` starts one)")


def read_job_file(path: str | Path) -> str:
    """The text of a job file; `Invalid` says why it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise Invalid(f"{path}: {reason}", 422, [("", str(reason))]) from error


def _path(job: str, *parts: str) -> str:
    return "/".join(["/v1/jobs", *(quote(part, safe="") for part in (job, *parts))])


def _given(**params: Any) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _resume(last_id: int) -> dict[str, Any]:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last_id)}
    return {"headers": headers, "timeout": httpx.Timeout(10.0, read=SILENCE_SECONDS)}


def _body(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None
