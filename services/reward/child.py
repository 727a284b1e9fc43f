"""The grader process: reads requests from stdin, answers on stdout, until stdin ends or the service dies.

    {"op": "prepare", "key", "spec", "data"}       -> {"source"} or {"error"}
    {"op": "grade", "key", "text", "tokens", "row"} -> {"value"} or {"error"}
    {"op": "sample", "data"}                       -> {"row"} or {"error"}

The limits set here stop accidents (a loop, a leak, a runaway expression), not an enemy: who may submit a `python:`
reward may run code on this machine. Graded code gets the null device as stdin and stderr as stdout.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO

HEADER = struct.Struct("<I")
PR_SET_PDEATHSIG = 1
MEBIBYTE = 1024 * 1024


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends (Linux; elsewhere the end of stdin does it)."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the call
            raise SystemExit(1)


def address_space() -> int:
    """Bytes of address space in use now; libraries loaded so far are not the reward's to answer for."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 512 * MEBIBYTE


def limit(memory_mebibytes: int, file_bytes: int) -> None:
    memory = address_space() + memory_mebibytes * MEBIBYTE
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_cpu(timeout_seconds: float) -> None:
    """CPU seconds are counted from the process's start, so each request moves the soft limit ahead.

    The service kills by the clock on the wall; this ends the process where the service can no longer do so.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime + timeout_seconds) + 1
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def plain(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """A row as it looks after a wire: what JSON cannot say becomes text."""
    return None if row is None else dict(json.loads(json.dumps(row, default=str)))


class Grader:
    """What is prepared in this process, and how a request is answered."""

    def __init__(self) -> None:
        self._prepared: dict[str, Any] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        from services.reward import components
        from services.reward.components.sample import sample_row
        from shared.job.spec import DataSpec, RewardSpec

        limit_cpu(float(request["timeout_seconds"]))
        try:
            if request["op"] == "prepare":
                spec, data = RewardSpec.model_validate(request["spec"]), DataSpec.model_validate(request["data"])
                prepared = components.prepare(components.Component(spec, data))
                self._prepared[request["key"]] = prepared
                return {"source": prepared.source}
            if request["op"] == "sample":
                return {"row": plain(sample_row(DataSpec.model_validate(request["data"])))}
            case = components.Case(request["text"], request["tokens"], request["row"])
            return {"value": self._prepared[request["key"]].grade(case)}
        except components.GradingError as error:
            return {"error": str(error)[:500]}
        except Exception as error:  # a library's failure is reported as what it is, and never as a value
            return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    import msgpack

    grader = Grader()
    while len(header := requests.read(HEADER.size)) == HEADER.size:
        (size,) = HEADER.unpack(header)
        body = msgpack.packb(grader.answer(msgpack.unpackb(requests.read(size), strict_map_key=False)))
        answers.write(HEADER.pack(len(body)) + body)
        answers.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="A grader process of the reward service; started by it.")
    parser.add_argument("--memory-mebibytes", type=int, required=True)
    parser.add_argument("--file-bytes", type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent()
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    from services.reward import components  # noqa: F401 - loaded before the limit, so that it does not count

    limit(arguments.memory_mebibytes, arguments.file_bytes)
    serve(requests, answers)


if __name__ == "__main__":
    main()
