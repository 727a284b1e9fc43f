"""One grader process, seen from the service: start it, ask it, kill it.

Requests and answers are length-prefixed MessagePack over its stdin and stdout. It takes one request at a time, so that
a process that hangs or dies names the one answer that did it. Whatever graded code prints goes to the process's stderr,
which is read here and bounded. A process that broke a limit, or whose caller was cancelled, is killed with its whole
process group and never asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import sys
from dataclasses import dataclass, field
from typing import Any

import msgpack

from services.reward.components import GradingError

MEBIBYTE = 1024 * 1024
MAX_ANSWER_BYTES = 65_536
HEADER = struct.Struct("<I")
KEPT_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "SYSTEMROOT")


@dataclass(frozen=True)
class Limits:
    """What one process may use. Memory counts beyond the bare interpreter; output is counted for each request."""

    memory_mebibytes: int = 2048
    output_bytes: int = MEBIBYTE
    file_bytes: int = 64 * MEBIBYTE


def environment(inherited: dict[str, str]) -> dict[str, str]:
    """What a grader may see of the service's environment: no credentials, one thread a library."""
    kept = {name: inherited[name] for name in KEPT_ENVIRONMENT if name in inherited}
    return kept | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@dataclass(eq=False)  # two processes are never equal
class GraderProcess:
    limits: Limits = Limits()
    prepared: set[str] = field(default_factory=set)
    _child: asyncio.subprocess.Process | None = None
    _reader: asyncio.Task[None] | None = None
    _output: int = 0
    _too_much: bool = False

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.returncode is None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        # fmt: off
        self._child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.reward.child",
            "--memory-mebibytes", str(self.limits.memory_mebibytes), "--file-bytes", str(self.limits.file_bytes),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=environment(dict(os.environ)), start_new_session=True,
        )
        # fmt: on
        self._reader = asyncio.create_task(self._count_output(), name="grader output")

    async def _count_output(self) -> None:
        """Reads what graded code prints until the process ends, and ends the process when it is too much."""
        assert self._child is not None and self._child.stderr is not None
        while chunk := await self._child.stderr.read(65_536):
            self._output += len(chunk)
            if self._output > self.limits.output_bytes and not self._too_much:
                self._too_much = True
                self._signal()

    async def ask(self, request: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        """The answer to `request`. Raises `GradingError`; the process is dead then, unless it answered the error."""
        assert self._child is not None and self._child.stdin is not None and self._child.stdout is not None
        self._output = 0
        try:
            async with asyncio.timeout(timeout_seconds):
                body = msgpack.packb(request)
                self._child.stdin.write(HEADER.pack(len(body)) + body)
                await self._child.stdin.drain()
                (size,) = HEADER.unpack(await self._child.stdout.readexactly(HEADER.size))
                if size > MAX_ANSWER_BYTES:
                    raise GradingError(f"the grader process answered {size} bytes, over {MAX_ANSWER_BYTES}")
                answer: dict[str, Any] = msgpack.unpackb(await self._child.stdout.readexactly(size))
        except TimeoutError:
            await self.kill()
            raise GradingError(f"took longer than {timeout_seconds:g} seconds and was killed") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await self.kill()
            raise GradingError(self._epitaph(code)) from None
        except BaseException:
            await self.kill()
            raise
        return answer

    def _epitaph(self, code: int) -> str:
        if self._too_much:
            return f"printed more than {self.limits.output_bytes} bytes and was killed"
        if code < 0:
            return f"its process ended by {signal.Signals(-code).name} while grading"
        return f"its process ended with code {code} while grading"

    def _signal(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)

    async def kill(self) -> int:
        """End the process and what it started; its exit code (negative: the signal that ended it first)."""
        if self._child is None:
            return 0
        with contextlib.suppress(TimeoutError):  # a process that died by itself keeps its own exit code
            async with asyncio.timeout(0.05):
                await self._child.wait()
        self._signal()
        code = await self._child.wait()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        return code
