"""One whole step against a loop written by hand, and what must not change its gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from services.trainer.examples import Example
from services.trainer.learner import Interrupted, Learner
from services.trainer.packing import micro_batches, rows, token_weights
from shared.job.spec import AlgorithmSpec, SamplingSpec

TEMPERATURE = 0.7


def batch(groups: int = 3, size: int = 4, seed: int = 0) -> list[Example]:
    """Answers of different lengths to prompts of different lengths; rewards of every kind; one answer masked."""
    draw = np.random.default_rng(seed)
    made = []
    for group in range(groups):
        prompt = draw.integers(3, 40, 4 + 2 * group)
        for index in range(size):
            answer = draw.integers(3, 40, 2 + (index * 3) % 7)
            ids = np.concatenate([prompt, answer]).astype(np.int32)
            mask = np.arange(len(ids)) >= len(prompt)
            logprobs = np.where(mask, -1.0 - 3 * draw.random(len(ids)), np.nan).astype(np.float32)
            reward = 1.0 if group == 0 else float((group + index) % 2)  # group 0: one reward throughout
            masked = "stale" if (group, index) == (2, 1) else ""
            made.append(Example(f"j/{group}/{index}", group, ids, mask, logprobs, reward=reward, masked=masked))
    return made


def learner(model, *, share=True, sampling=None, reference=None, **algorithm) -> Learner:
    spec = AlgorithmSpec(**{"learning_rate": 1e-2, "max_gradient_norm": 1e6} | algorithm)
    sampling = sampling or SamplingSpec(temperature=TEMPERATURE, max_tokens=16)
    return Learner(model, algorithm=spec, sampling=sampling, reference=reference, share_prompts=share)


def gradient(made: Learner, examples: list[Example]) -> tuple[float, torch.Tensor]:
    """The loss of a step and its gradient, caught where the optimizer would use it."""
    caught: list[torch.Tensor] = []

    def catch(*_) -> None:
        for group in made.optimizer.param_groups:
            caught.extend(p.grad.flatten().clone() for p in group["params"])

    made.optimizer.register_step_pre_hook(catch)
    report = made.step(examples, 1)
    return report.loss, torch.cat(caught)


def by_hand(model, examples, spec: AlgorithmSpec, reference=None, max_tokens: int = 16) -> torch.Tensor:
    """The step's loss, one answer and one token at a time."""
    used = [e for e in examples if not e.masked]
    tokens = sum(int(e.mask.sum()) for e in used)
    loss = torch.zeros((), dtype=torch.float64)
    for e in used:
        rewards = [o.reward for o in examples if o.group == e.group]
        mean = sum(rewards) / len(rewards)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
        gain = 0.0 if deviation == 0 else (e.reward - mean) / (deviation if spec.advantage == "group_std" else 1.0)
        share = {
            "token": 1 / tokens,
            "sequence": 1 / (len(used) * int(e.mask.sum())),
            "constant": 1 / (len(used) * max_tokens),
        }[spec.loss_normalisation]
        ids = torch.tensor(e.token_ids.astype(np.int64))[None]
        logs = torch.log_softmax(model(input_ids=ids).logits[0] / TEMPERATURE, dim=-1)
        base = (
            None if reference is None else torch.log_softmax(reference(input_ids=ids).logits[0] / TEMPERATURE, dim=-1)
        )
        for t in np.flatnonzero(e.mask):
            logp = logs[t - 1, e.token_ids[t]]
            ratio = torch.exp(logp - float(e.logprobs[t])).clamp(max=spec.max_importance_weight)
            clipped = ratio.clamp(1 - spec.clip_low, 1 + spec.clip_high)
            term = -torch.minimum(ratio * gain, clipped * gain)
            if base is not None:
                gap = base[t - 1, e.token_ids[t]].detach() - logp
                term = term + spec.kl * (torch.exp(gap) - gap - 1)
            loss = loss + share * term
    return loss


@pytest.mark.parametrize("normalisation", ["token", "sequence", "constant"])
@pytest.mark.parametrize("advantage", ["group_std", "group_mean"])
@pytest.mark.parametrize("share", [True, False])
def test_the_loss_and_gradient_of_a_step_are_those_of_a_loop_by_hand(tiny_llama, normalisation, advantage, share):
    examples = batch()
    made = learner(tiny_llama(), share=share, loss_normalisation=normalisation, advantage=advantage)
    assert made.score.can_share
    expected = by_hand(tiny_llama(), examples, made.algorithm)
    model = tiny_llama()
    by_hand(model, examples, made.algorithm).backward()
    loss, found = gradient(made, examples)
    wanted = {name: p.grad for name, p in model.named_parameters()}
    order = [id(p) for group in made.optimizer.param_groups for p in group["params"]]
    named = {id(p): name for name, p in made.model.named_parameters()}
    flat = torch.cat([wanted[named[i]].flatten() for i in order])
    assert loss == pytest.approx(expected.item(), abs=1e-6)
    torch.testing.assert_close(found, flat, rtol=1e-6, atol=1e-6)


def test_the_kl_pulls_towards_the_reference(tiny_llama):
    examples = batch()
    made = learner(tiny_llama(), reference=tiny_llama(seed=1), kl=0.5)
    expected = by_hand(tiny_llama(), examples, made.algorithm, reference=tiny_llama(seed=1))
    assert made.step(examples, 1).loss == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("normalisation", ["token", "sequence", "constant"])
@pytest.mark.parametrize("share", [True, False])
def test_one_two_and_five_micro_batches_give_one_gradient(tiny_llama, normalisation, share):
    examples = batch(groups=7)
    seen: dict[int, tuple[float, torch.Tensor]] = {}
    for budget in (1000, 400, 300, 200, 150, 110, 100, 90, 80, 70, 60, 50, 40, 35, 30):
        made = learner(tiny_llama(), share=share, loss_normalisation=normalisation, tokens_per_micro_batch=budget)
        shares = token_weights(examples, normalisation, 16)
        packed = rows(examples, made.advantages(examples), shares, budget=budget, share_prompts=share)
        count = len(micro_batches(packed, budget))
        if count not in seen:
            seen[count] = gradient(made, examples)
    seen = {count: seen[count] for count in (1, 2, 5) if count in seen}
    assert sorted(seen) == [1, 2, 5]
    for loss, found in seen.values():
        assert loss == pytest.approx(seen[1][0], abs=1e-6)
        torch.testing.assert_close(found, seen[1][1], rtol=0, atol=1e-6)


def test_the_order_of_the_samples_does_not_matter(tiny_llama):
    examples = batch()
    _, straight = gradient(learner(tiny_llama()), examples)
    _, mixed = gradient(
        learner(tiny_llama()), [examples[i] for i in np.random.default_rng(1).permutation(len(examples))]
    )
    torch.testing.assert_close(mixed, straight, rtol=0, atol=1e-9)


def test_the_same_step_twice_is_the_same_bits(tiny_llama):
    first, second = (learner(tiny_llama(torch.float32)) for _ in range(2))
    reports = [made.step(batch(), 1) for made in (first, second)]
    assert reports[0] == reports[1]
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_groups_without_a_difference_cost_nothing(tiny_llama):
    flat = [e for e in batch() if e.group == 0]
    model = tiny_llama()
    before = [p.clone() for p in model.parameters()]
    report = learner(model).step(flat, 1)
    assert (report.computed_tokens, report.loss, report.gradient_norm) == (0, 0.0, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_prompt_is_computed_once_for_its_group(tiny_llama):
    examples = [e for e in batch() if e.group == 1]
    together = learner(tiny_llama(), share=True).step(examples, 1).computed_tokens
    apart = learner(tiny_llama(), share=False).step(examples, 1).computed_tokens
    prompt, answers = 6, sum(int(e.mask.sum()) for e in examples)
    assert together == prompt + answers
    assert apart >= len(examples) * prompt + answers


def test_sft_learns_the_demonstrations(tiny_llama):
    examples = [Example(e.sample, e.group, e.token_ids, e.mask, e.logprobs * np.nan) for e in batch()]
    made = learner(tiny_llama(), kind="sft", sampling=SamplingSpec(temperature=0.3))
    losses = [made.step(examples, step).loss for step in range(1, 30)]
    assert losses[-1] < 0.5 * losses[0]
    model = tiny_llama()
    total, count = 0.0, 0
    for e in examples:
        logs = torch.log_softmax(model(input_ids=torch.tensor(e.token_ids.astype(np.int64))[None]).logits[0], -1)
        for t in np.flatnonzero(e.mask):
            total, count = total - logs[t - 1, e.token_ids[t]].item(), count + 1
    assert losses[0] == pytest.approx(total / count, abs=1e-6)  # at temperature 1, whatever the sampling has


def test_a_gradient_that_is_not_finite_changes_nothing(tiny_llama):
    examples = batch()
    e = examples[5]
    examples[5] = Example(e.sample, e.group, e.token_ids, e.mask, e.logprobs * np.nan, reward=e.reward)
    model = tiny_llama()
    before = [p.clone() for p in model.parameters()]
    report = learner(model).step(examples, 1)
    assert not report.applied
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_an_interrupted_step_leaves_no_trace(tiny_llama):
    made = learner(tiny_llama(), tokens_per_micro_batch=8)
    asked = iter([False, False, True])
    with pytest.raises(Interrupted):
        made.step(batch(), 1, interrupted=lambda: next(asked))
    fresh = learner(tiny_llama(), tokens_per_micro_batch=8)
    assert made.step(batch(), 1) == fresh.step(batch(), 1)


def test_the_rate_warms_up_in_a_line(tiny_llama):
    made = learner(tiny_llama(), warmup_steps=3, learning_rate=0.4)
    rates = [made.step(batch(), step).learning_rate for step in range(1, 7)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


def test_a_long_gradient_is_cut_to_the_norm(tiny_llama):
    made = learner(tiny_llama(), max_gradient_norm=1e-3)
    caught = []
    made.optimizer.register_step_pre_hook(
        lambda *_: caught.append(sum(float(p.grad.norm()) ** 2 for p in made.model.parameters()) ** 0.5)
    )
    report = made.step(batch(), 1)
    assert report.gradient_norm > 1e-3 and caught[0] == pytest.approx(1e-3, rel=1e-2)
