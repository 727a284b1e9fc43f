from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Problems = Callable[..., dict[str, str]]
SUM = {"reasoning_gym": "chain_sum"}


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        ({}, "data", "name exactly one of reasoning_gym, parts, jsonl, huggingface (found none)"),
        ({**SUM, "jsonl": "a"}, "data", "name exactly one of"),
        ({**SUM, "settings": {"seed": 3}}, "data.settings.seed", "the rows' seed is the job's: set seed"),
        ({**SUM, "settings": {"size": 3}}, "data.settings.size", "the rows' size is the job's: set data.size"),
        ({**SUM, "settings": {"x": {"y": 2**70}}}, "data.settings.x.y", "must be a number of at most 64 bits"),
        ({**SUM, "settings": {"x": [1.0, float("inf")]}}, "data.settings.x.1", "must be a finite number"),
        ({**SUM, "prompt": "text"}, "data.prompt", "reasoning-gym rows have the columns question and answer"),
        ({**SUM, "split": "test"}, "data.split", "split is for data.huggingface"),
        ({**SUM, "template": "raw", "system": "Be brief."}, "data.system", "a system message needs template: chat"),
        ({"jsonl": "a", "size": 3}, "data.size", "size is for reasoning-gym; jsonl is read whole"),
        ({"jsonl": "a", "settings": {"x": 1}}, "data.settings", "settings belong to data.reasoning_gym; take them out"),
        ({"parts": [{"name": "a", **SUM}] * 2}, "data.parts", "two parts have the name a; give each its own"),
        ({"parts": [{"name": "a", **SUM}], "settings": {"x": 1}}, "data.settings", "settings belong to"),
        ({"parts": [{"name": "a", **SUM, "settings": {"seed": 1}}]}, "data.parts.0.settings.seed", "the rows' seed"),
    ],
)
def test_data_comes_from_one_source_with_options_of_its_own(
    problems: Problems, data: dict[str, Any], path: str, message: str
) -> None:
    found = problems(data=data)
    assert list(found) == [path]
    assert found[path].startswith(message)


@pytest.mark.parametrize(
    ("component", "path", "message"),
    [
        ({"kind": "python"}, "function", "kind: python needs a function"),
        ({"kind": "python", "function": "no colon"}, "function", "'no colon' is neither module:function nor"),
        ({"kind": "python", "function": "a b:f"}, "function", "'a b:f' is neither"),
        ({"kind": "exact", "function": "a:f"}, "function", "function is for kind: python"),
        ({"kind": "exact", "memory_mebibytes": 100}, "memory_mebibytes", "memory_mebibytes is for kind: python"),
        ({"kind": "regex"}, "pattern", "a regex needs a pattern"),
        ({"kind": "regex", "pattern": "("}, "pattern", "not a regular expression: missing )"),
        ({"kind": "exact", "extract": "regex"}, "pattern", "a regex needs a pattern"),
        ({"kind": "exact", "pattern": "x"}, "pattern", "pattern is for"),
        ({"kind": "regex", "pattern": "x", "extract": "regex"}, "extract", "one pattern cannot both"),
        ({"kind": "length"}, "target_tokens", "kind: length needs target_tokens"),
        ({"kind": "exact", "target_tokens": 3}, "target_tokens", "target_tokens is for kind: length"),
        ({"kind": "length", "target_tokens": 3, "extract": "tag"}, "extract", "kind: length counts the whole answer"),
        ({"kind": "exact", "tag": "final"}, "tag", "tag is for extract: tag"),
    ],
)
def test_each_kind_of_reward_has_what_it_needs_and_nothing_else(
    problems: Problems, component: dict[str, Any], path: str, message: str
) -> None:
    found = problems(reward=[{"name": "a", **component}])
    assert list(found) == [f"reward.0.{path}"]
    assert found[f"reward.0.{path}"].startswith(message)


def test_reasoning_gym_grades_its_own_tasks_only(problems: Problems) -> None:
    graded = [{"name": "a", "kind": "reasoning_gym"}]
    assert problems(reward=graded) == {}
    assert problems(reward=graded, data={"parts": [{"name": "a", **SUM}]}) == {}
    assert list(problems(reward=graded, data={"jsonl": "a"})) == ["reward.0.kind"]


def test_rewards_have_names_of_their_own_and_something_to_say(problems: Problems) -> None:
    twice = [{"name": "a", "kind": "exact"}, {"name": "a", "kind": "math"}]
    assert problems(reward=twice) == {"reward": "two components have the name a; give each its own"}
    silent = [{"name": "a", "kind": "exact", "weight": 0}]
    assert problems(reward=silent) == {"reward": "every weight is 0, so there is nothing to learn from"}
    assert problems(reward=silent, algorithm={"kind": "sft"}) == {}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"algorithm": {"group_size": 1}}, "algorithm.group_size"),
        ({"algorithm": {"kind": "sft", "staleness": 2}}, "algorithm.staleness"),
        ({"algorithm": {"kind": "sft", "kl": 0.1}}, "algorithm.kl"),
        ({"algorithm": {"steps": 5, "warmup_steps": 6}}, "algorithm.warmup_steps"),
        ({"algorithm": {"stop_at": {"solve_rate": 0.5}}}, "algorithm.stop_at"),
        ({"deterministic": True}, "deterministic"),
        ({"sampling": {"top_k": 0}}, "sampling.top_k"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature"),
        ({"evaluation": {"every": 2}}, "evaluation.prompts"),
        ({"evaluation": {"prompts": 4096}}, "evaluation.prompts"),
        ({"evaluation": {"prompts": 2, "modes": ["greedy", "greedy"]}}, "evaluation.modes"),
        ({"evaluation": {"prompts": 2, "modes": []}}, "evaluation.modes"),
        ({"evaluation": {"prompts": 2, "modes": ["greedy"], "samples": 2}}, "evaluation.samples"),
        ({"algorithm": {"groups_per_step": 16384, "group_size": 8, "steps": 1}}, "algorithm.groups_per_step"),
        ({"algorithm": {"groups_per_step": 2048, "steps": 1_000_000}}, "algorithm.steps"),
    ],
)
def test_sections_agree_with_each_other(problems: Problems, changes: dict[str, Any], path: str) -> None:
    assert list(problems(**changes)) == [path]


def test_what_has_to_be_kept_between_checkpoints_is_bounded(problems: Problems) -> None:
    found = problems(
        algorithm={"groups_per_step": 1024, "group_size": 16, "steps": 1000},
        sampling={"max_tokens": 100_000},
        checkpoint={"every": 500},
    )
    assert list(found) == ["checkpoint.every"]
    assert "TiB, at most 1" in found["checkpoint.every"]


def test_a_deterministic_job_is_an_on_policy_job(problems: Problems) -> None:
    assert problems(deterministic=True, algorithm={"staleness": 0}) == {}
    assert problems(deterministic=True, algorithm={"kind": "sft"}) == {}
