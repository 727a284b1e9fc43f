"""The engine's command line, named as SGLang names it. Imports nothing heavy, so that --help is quick."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """How the engine was started."""

    model_path: Path
    host: str
    port: int
    dtype: str
    weight_version: str
    max_running_requests: int
    context_length: int | None
    deterministic: bool
    max_body_mib: int
    log_level: str


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 65536:
        raise argparse.ArgumentTypeError(f"{value} is not a port")
    return value


def parse(arguments: list[str] | None = None) -> Settings:
    """Settings from the command line; argparse ends the process on --help and on errors."""
    parser = argparse.ArgumentParser(
        prog="python -m engine", description="Serves a Llama- or Qwen2-style model on the CPU with SGLang's HTTP API."
    )
    add = parser.add_argument
    add("--model-path", type=Path, required=True, help="Hugging Face model folder")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=_port, default=30000, help="port to listen on; 0 takes a free one and says which")
    add("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="auto: bfloat16 where the CPU has it")
    add("--weight-version", default="default", help="name of the weights that are loaded first")
    add("--max-running-requests", type=_positive, default=32, help="slots: requests decoded together")
    add("--context-length", type=_positive, help="longest prompt + answer in tokens (default: the model's)")
    add("--deterministic", action="store_true", help="fixed shapes: results do not depend on neighbours, bit for bit")
    add("--max-body-mib", type=_positive, default=16, help="largest request body (default: %(default)s MiB)")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return Settings(**vars(parser.parse_args(arguments)))
