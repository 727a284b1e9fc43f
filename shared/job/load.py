"""A job file -> `JobSpec`, or every problem in it at once, one line each.

    text -> yaml_text (plain data) -> spec (shapes, bounds) -> rules (what fields must agree on)

The same function serves the command line, `POST /v1/jobs` and the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shared.job.complaints import complaints, shown
from shared.job.rules import broken_rules
from shared.job.spec import JobSpec
from shared.job.yaml_text import MAX_BYTES, BadYaml, read_yaml
from shared.wire.messages import Problem

MAX_PROBLEMS = 50


class BadJob(ValueError):
    """A job file that cannot be run: `problems` names each field's path and what would be right."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems[:MAX_PROBLEMS]
        super().__init__("; ".join(f"{p.path}: {p.message}" if p.path else p.message for p in self.problems))


def load_job(source: str | bytes | Mapping[str, Any]) -> JobSpec:
    """The job in a YAML text or in plain data; `BadJob` when there is anything wrong with it."""
    if isinstance(source, str | bytes):
        try:
            source = read_yaml(source)
        except BadYaml as error:
            raise BadJob([Problem(path="", message=str(error))]) from error
    if not isinstance(source, Mapping):
        raise BadJob([Problem(path="", message=f"a job file is a section of `key: value` lines, not {shown(source)}")])
    try:
        spec = JobSpec.model_validate(dict(source))
    except ValidationError as error:
        raise BadJob(complaints(error.errors(include_url=False))) from error
    broken = broken_rules(spec)
    if broken:
        raise BadJob(broken)
    return spec


def load_job_file(path: Path) -> JobSpec:
    """The job in a file. Relative paths in it are taken from the file's folder, wherever the stack runs."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadJob([Problem(path="", message=f"cannot read {path}: {error.strerror or error}")]) from error
    return anchored(load_job(text), path.resolve().parent)


def anchored(spec: JobSpec, folder: Path) -> JobSpec:
    """`spec` with absolute paths: data.jsonl, a model, data set or reward file that is written as a path."""

    def absolute(text: str) -> str:
        return str((folder / Path(text).expanduser()).resolve())

    def if_path(text: str) -> str:
        return absolute(text) if text.startswith(("./", "../", "~")) else text

    data = spec.data
    if data.jsonl is not None:
        data = data.model_copy(update={"jsonl": absolute(data.jsonl)})
    if data.huggingface is not None:
        data = data.model_copy(update={"huggingface": if_path(data.huggingface)})
    reward = []
    for component in spec.reward:
        file, colon, name = component.function.rpartition(":")
        if file.endswith(".py"):
            component = component.model_copy(update={"function": f"{absolute(file)}{colon}{name}"})
        reward.append(component)
    return spec.model_copy(update={"model": if_path(spec.model), "data": data, "reward": tuple(reward)})
