"""`docs/job-file.md`, written from the schema: `python -m shared.job.document > docs/job-file.md`.

A test compares the page with what this makes, so the page cannot fall behind.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from shared.job.spec import JobSpec

EXAMPLE = """\
name: sums
model: smollm2-135m-instruct
data:
  reasoning_gym: chain_sum
  settings: {min_terms: 2, max_terms: 3, min_digits: 1, max_digits: 1}
reward:
  - {name: solved, kind: exact, extract: last_number}
algorithm: {steps: 20, learning_rate: 1e-5}
evaluation: {every: 10, prompts: 128}
"""

INTRODUCTION = f"""\
# The job file

A job is one YAML file. Every field has a default that runs on a laptop, except `name`, `model`, `data` and `reward`:

```yaml
{EXAMPLE}```

`slipstream validate JOB.yaml` says everything that is wrong with a file, without running it; `slipstream submit` and
`POST /v1/jobs` check the same. [examples/](../examples) has files that are run by tests.

- Unknown keys are errors and name the nearest known key. Nothing is converted: `"8"` is text, not a number.
- YAML is read as plain data: `1e-5` is a number; `yes`, `no` and dates are text; anchors, aliases, tags and a key given
  twice are refused; at most 1 MiB.
- Relative paths (`data.jsonl`, a `.py` file in a reward, and whatever begins with `./`, `../` or `~` in `model` and
  `data.huggingface`) start from the job file's folder.
- Evaluation prompts share no question with the training rows; the job says how many rows that removed. reasoning-gym
  tasks are finite: `chain_sum` of two one-digit terms has 200 questions in all.
- Rows of a file may carry a text column `part`; evaluations are reported for each part, as for `data.parts`.
- What rewards get and give is in [rewards.md](rewards.md).
- All randomness follows from `seed`. Two runs of one file draw the same rows in the same order and give every answer
  the same seed.
- Numbers that follow from others are not options: stream sizes, the number of answers in flight
  (`(staleness + 1) * groups_per_step * group_size`), the seeds.

This page is written by `python -m shared.job.document` from the schema.
"""


def document() -> str:
    """The whole page."""
    lines = [INTRODUCTION.rstrip("\n")]
    for title, model in _sections():
        lines += ["", f"## {title}", "", *_section(model)]
    return "\n".join(lines) + "\n"


def _sections() -> Iterator[tuple[str, type[BaseModel]]]:
    waiting: list[tuple[str, type[BaseModel]]] = [("The file", JobSpec)]
    while waiting:
        title, model = waiting.pop(0)
        yield title, model
        prefix = "" if model is JobSpec else f"{title.strip('`')}."
        inner = [
            (f"`{prefix}{name}{'[]' if get_origin(field.annotation) is tuple else ''}`", found)
            for name, field in model.model_fields.items()
            for found in _models(field.annotation)
        ]
        waiting = inner + waiting


def _section(model: type[BaseModel]) -> Iterator[str]:
    yield " ".join((model.__doc__ or "").split())
    yield ""
    yield "| field | value | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, field in model.model_fields.items():
        cells = (f"`{name}`", _kind(field.annotation) + _bounds(field), _default(field), field.description or "")
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _kind(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin in (Union, types.UnionType):
        return _kind(next(argument for argument in arguments if argument is not type(None)))
    if origin is tuple:
        inner = _kind(arguments[0])
        return "list of sections" if inner == "section" else f"list of {inner}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    if get_args(annotation) and hasattr(annotation, "__metadata__"):
        return _kind(arguments[0])
    names = {int: "whole number", float: "number", str: "text", bool: "`true`, `false`"}
    return names.get(annotation, "section")


def _bounds(field: FieldInfo) -> str:
    words = {"ge": "from", "gt": "over", "le": "to", "lt": "under"}
    said = [
        f"{word} {value:,}" if isinstance(value, int) and value >= 10_000 else f"{word} {value:g}"
        for word_key, word in words.items()
        for bound in field.metadata
        if (value := getattr(bound, word_key, None)) is not None
    ]
    return f" {' '.join(said)}" if said else ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default is not PydanticUndefined else {}
    if isinstance(value, BaseModel):
        return "see below"
    if value is None or value in ("", (), {}):
        return "empty"
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]


if __name__ == "__main__":
    print(document(), end="")
