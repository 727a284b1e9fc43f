"""What several fields of a job file must agree on. Each rule yields the field's path and what would be right."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from shared.job import limits
from shared.job.spec import DataSpec, JobSpec, RewardSpec
from shared.wire.messages import Problem

SOURCES = ("reasoning_gym", "parts", "jsonl", "huggingface")
FUNCTION = re.compile(r"^(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|[^:\x00]+\.py):[A-Za-z_]\w*$", flags=re.ASCII)


def broken_rules(spec: JobSpec) -> list[Problem]:
    """Every rule that `spec` breaks, in the order of the file."""
    found = [*_data(spec.data)]
    for i, component in enumerate(spec.reward):
        found += _component(f"reward.{i}", component, spec)
    found += [*_rewards(spec), *_algorithm(spec), *_sampling(spec), *_evaluation(spec), *_sizes(spec)]
    return [Problem(path=path, message=message) for path, message in found]


Broken = Iterator[tuple[str, str]]


def _data(data: DataSpec) -> Broken:
    named = [name for name in SOURCES if getattr(data, name)]
    if len(named) != 1:
        found = f"found {' and '.join(named)}" if named else "found none"
        yield "data", f"name exactly one of {', '.join(SOURCES)} ({found})"
        return
    for name in _twice(part.name for part in data.parts):
        yield "data.parts", f"two parts have the name {name}; give each its own"
    yield from _settings("data.settings", data.settings)
    for i, part in enumerate(data.parts):
        yield from _settings(f"data.parts.{i}.settings", part.settings)
    if data.settings and not data.reasoning_gym:
        where = "give them in each part" if data.parts else "take them out"
        yield "data.settings", f"settings belong to data.reasoning_gym; {where}"
    if data.tasks:
        if (data.prompt, data.answer) != ("question", "answer"):
            yield "data.prompt", "reasoning-gym rows have the columns question and answer; take prompt and answer out"
    elif data.size != _default(DataSpec, "size"):
        yield "data.size", f"size is for reasoning-gym; {named[0]} is read whole"
    if data.huggingface is None:
        for name in ("subset", "split"):
            if getattr(data, name) != _default(DataSpec, name):
                yield f"data.{name}", f"{name} is for data.huggingface, and this job reads {named[0]}"
    if data.system is not None and data.template == "raw":
        yield "data.system", "a system message needs template: chat"


def _settings(path: str, value: Any) -> Broken:
    """Settings cross the wire and make the digest, so they are plain values."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if path.endswith("settings") and key in ("seed", "size"):
                yield f"{path}.{key}", f"the rows' {key} is the job's: set {'seed' if key == 'seed' else 'data.size'}"
            if not isinstance(key, str):
                yield path, f"the key {key!r} must be text"
            yield from _settings(f"{path}.{key}", inner)
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _settings(f"{path}.{i}", inner)
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, "must be a finite number"
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield path, "must be a number of at most 64 bits"
    elif not isinstance(value, str | int | float | bool | None):
        yield path, f"must be text, a number, true, false, a list or a section, not {type(value).__name__}"


def _component(path: str, component: RewardSpec, spec: JobSpec) -> Broken:
    kind, extract = component.kind, component.extract
    if kind == "reasoning_gym" and not spec.data.tasks:
        yield f"{path}.kind", "reasoning_gym grades reasoning-gym tasks only; use math, exact, regex, length or python"
    if (kind == "python") != bool(component.function):
        right = "kind: python needs a function" if kind == "python" else "function is for kind: python"
        yield f"{path}.function", f"{right}, like my_module:score or rewards/score.py:score"
    elif component.function and not FUNCTION.match(component.function):
        yield f"{path}.function", f"{component.function!r} is neither module:function nor path.py:function"
    if kind != "python" and component.memory_mebibytes != _default(RewardSpec, "memory_mebibytes"):
        yield f"{path}.memory_mebibytes", "memory_mebibytes is for kind: python"
    if (kind == "length") != bool(component.target_tokens):
        right = (
            "kind: length needs target_tokens, at least 1" if kind == "length" else "target_tokens is for kind: length"
        )
        yield f"{path}.target_tokens", right
    if kind == "length" and extract != "whole":
        yield f"{path}.extract", "kind: length counts the whole answer; take extract out"
    if kind == "regex" and extract == "regex":
        yield f"{path}.extract", "one pattern cannot both extract and grade; use extract: whole, last_number or tag"
    uses_pattern = kind == "regex" or extract == "regex"
    if uses_pattern != bool(component.pattern):
        right = "a regex needs a pattern" if uses_pattern else "pattern is for kind: regex and extract: regex"
        yield f"{path}.pattern", right
    elif component.pattern:
        try:
            re.compile(component.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            yield f"{path}.pattern", f"not a regular expression: {error}"
    if extract != "tag" and component.tag != _default(RewardSpec, "tag"):
        yield f"{path}.tag", "tag is for extract: tag"


def _rewards(spec: JobSpec) -> Broken:
    for name in _twice(component.name for component in spec.reward):
        yield "reward", f"two components have the name {name}; give each its own"
    if spec.algorithm.kind == "grpo" and not any(component.weight for component in spec.reward):
        yield "reward", "every weight is 0, so there is nothing to learn from"


def _algorithm(spec: JobSpec) -> Broken:
    algorithm, evaluation = spec.algorithm, spec.evaluation
    if algorithm.kind == "grpo" and algorithm.group_size < 2:
        yield "algorithm.group_size", "grpo compares the answers of a group: at least 2"
    if algorithm.kind == "sft" and algorithm.staleness > 1:
        yield "algorithm.staleness", "sft trains on given answers, which have no age; take it out"
    if algorithm.kind == "sft" and algorithm.kl:
        yield "algorithm.kl", "kl is for grpo; take it out"
    if algorithm.warmup_steps > algorithm.steps:
        yield "algorithm.warmup_steps", f"longer than the job's {algorithm.steps} steps"
    if algorithm.stop_at is not None and not (
        evaluation.every and evaluation.prompts and "sampled" in evaluation.modes
    ):
        yield (
            "algorithm.stop_at",
            "needs evaluation.every and evaluation.prompts over 0 and sampled among evaluation.modes",
        )
    if spec.deterministic and algorithm.kind == "grpo" and algorithm.staleness:
        yield "deterministic", "needs algorithm.staleness: 0; with more, timing decides which version makes a token"


def _sampling(spec: JobSpec) -> Broken:
    if spec.sampling.top_k == 0:
        yield "sampling.top_k", "must be -1 (no limit) or at least 1"


def _evaluation(spec: JobSpec) -> Broken:
    evaluation = spec.evaluation
    for mode in _twice(evaluation.modes):
        yield "evaluation.modes", f"{mode} is named twice"
    if evaluation.every and not evaluation.prompts:
        yield "evaluation.prompts", "evaluation.every needs held-out prompts: set how many"
    if evaluation.samples > 1 and "sampled" not in evaluation.modes:
        yield "evaluation.samples", "samples is for the sampled mode, which evaluation.modes leaves out"
    if spec.data.tasks and evaluation.prompts >= spec.data.size:
        yield "evaluation.prompts", f"leaves nothing to train on: data.size is {spec.data.size}"


def _sizes(spec: JobSpec) -> Broken:
    samples = spec.samples_per_step
    if samples > limits.MAX_SAMPLES_PER_STEP:
        yield (
            "algorithm.groups_per_step",
            f"groups_per_step * group_size is {samples} answers a step; at most {limits.MAX_SAMPLES_PER_STEP}",
        )
    stream = limits.stream_bytes(spec, prompt_tokens=0)
    if stream > limits.MAX_STREAM_BYTES:
        yield (
            "checkpoint.every",
            f"{limits.samples_kept(spec)} answers of up to {spec.sampling.max_tokens} tokens have to be kept between "
            f"checkpoints ({stream / 1024**4:.1f} TiB, at most 1); checkpoint more often, or make the step smaller",
        )
    if limits.ledger_bytes(spec) > limits.MAX_LEDGER_BYTES:
        yield (
            "algorithm.steps",
            f"{spec.algorithm.steps} steps of {samples} answers make a ledger of over 64 GiB; split the job",
        )


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def _default(section: type[RewardSpec] | type[DataSpec], name: str) -> Any:
    return section.model_fields[name].default
