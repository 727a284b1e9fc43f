"""The command that starts an engine. Pure: both engines take the same names for what a job decides."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from services.rollout.switching import Flags

USUAL = {
    "builtin": (sys.executable, "-m", "engine"),
    "sglang": (sys.executable, "-m", "sglang.launch_server"),
}


def engine_command(
    kind: str, *, usual: str, extra: str, folder: Path, version: str, flags: Flags, slots: int, port: int
) -> list[str]:
    """`usual` replaces the usual program, `extra` comes last. Port 0: the built-in engine takes a free one."""
    command: list[str] = [*(shlex.split(usual) if usual else USUAL[kind])]
    command += ["--model-path", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--weight-version", version, "--max-running-requests", str(slots), "--dtype", flags.dtype]
    if flags.context_length:
        command += ["--context-length", str(flags.context_length)]
    if flags.deterministic:
        command += ["--deterministic" if kind == "builtin" else "--enable-deterministic-inference"]
    return [*command, *shlex.split(extra)]


def shown(command: Sequence[str]) -> str:
    return shlex.join(command)
