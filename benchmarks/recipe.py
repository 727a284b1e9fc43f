"""The demo's recipe in one process: does SmolLM2-135M-Instruct learn one-digit sums in minutes on two cores?

    python -m benchmarks.recipe --seeds 1 2 3 --data-dir .slipstream/data

The update is the trainer's own core (`services.trainer.learner`), the reward the reward service's own extraction; the
answers come from a small batch sampler below instead of an engine behind HTTP. Staleness is played: the answers of step
s + 1 are drawn before step s is trained. What it prints is what `docs/log.md` records.

Left out: everything that makes the real thing robust. It exists so that a change of the recipe can be judged alone.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.reward.components.exact import equal
from services.reward.extract import last_number
from services.trainer.examples import Example
from services.trainer.learner import Learner
from services.trainer.policy import load_model, pick_autocast
from shared.job.spec import AlgorithmSpec, SamplingSpec


@dataclass(frozen=True)
class Question:
    ids: list[int]
    text: str
    answer: str


@dataclass(frozen=True)
class Answer:
    ids: np.ndarray
    logprobs: np.ndarray
    exact: float
    reward: float


def main() -> int:
    options = parse()
    torch.set_num_threads(options.threads)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder(options))
    for seed in options.seeds:
        run(options, seed, tokenizer)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="model folder; default: the shipped SmolLM2")
    parser.add_argument("--data-dir", type=Path, default=Path(".slipstream/data"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--staleness", type=int, default=1)
    parser.add_argument("--max-terms", type=int, default=2)
    parser.add_argument("--max-digits", type=int, default=1)
    parser.add_argument("--allow-negation", action="store_true")
    parser.add_argument("--system", default=None)
    parser.add_argument("--suffix", default="")
    parser.add_argument("--length-weight", type=float, default=0.0)
    parser.add_argument("--target-tokens", type=int, default=8)
    parser.add_argument("--normalisation", default="token")
    parser.add_argument("--beta2", type=float, default=0.99)
    parser.add_argument("--precision", choices=["float32", "bfloat16", "auto"], default="float32")
    parser.add_argument("--prompts", type=int, default=100, help="held-out questions; at most half of all there are")
    parser.add_argument("--samples", type=int, default=4, help="sampled answers to each of them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--skip-greedy", action="store_true")
    parser.add_argument("--show", type=int, default=0, help="print so many answers of each evaluation")
    return parser.parse_args()


def model_folder(options: argparse.Namespace) -> Path:
    if options.model:
        return Path(options.model)
    from shared.policy import resolve_model

    return resolve_model("smollm2-135m-instruct", options.data_dir).path


def run(options: argparse.Namespace, seed: int, tokenizer: Any) -> None:
    """One seed: evaluate, train, evaluate, print one line of JSON."""
    began = time.monotonic()
    model = load_model(model_folder(options), device=torch.device("cpu"))
    sampling = SamplingSpec(max_tokens=options.max_tokens)
    algorithm = AlgorithmSpec(
        learning_rate=options.learning_rate,
        steps=options.steps,
        loss_normalisation=options.normalisation,
        adam_beta2=options.beta2,
    )
    autocast = pick_autocast(options.precision, torch.device("cpu"))
    learner = Learner(model, algorithm=algorithm, sampling=sampling, autocast=autocast, pad_id=2)
    train, held_out = questions(options, seed, tokenizer)
    sampler = Sampler(model, tokenizer, options, np.random.default_rng(seed))

    before = evaluate(sampler, held_out, options)
    marks = {"evaluate": time.monotonic() - began}
    waiting: list[list[tuple[int, Question, Answer]]] = []
    solved, seconds = [], {"generate": 0.0, "train": 0.0}
    for step in range(1, options.steps + 1):
        while len(waiting) <= min(options.staleness, options.steps - step):
            at = time.monotonic()
            first = (step - 1 + len(waiting)) * options.groups
            chosen = [(g, train[g % len(train)]) for g in range(first, first + options.groups)]
            asked = [(g, q) for g, q in chosen for _ in range(options.group_size)]
            answers = sampler.answers([q for _, q in asked], greedy=False)
            waiting.append([(g, q, a) for (g, q), a in zip(asked, answers, strict=True)])
            seconds["generate"] += time.monotonic() - at
        batch = waiting.pop(0)
        at = time.monotonic()
        report = learner.step([example(i, g, q, a) for i, (g, q, a) in enumerate(batch)], step)
        seconds["train"] += time.monotonic() - at
        sampler.refresh()
        solved.append(float(np.mean([a.exact for _, _, a in batch])))
        print(
            f"seed {seed} step {step}: solved {solved[-1]:.2f} loss {report.loss:.3f} norm {report.gradient_norm:.2f} "
            f"importance {report.means.get('importance', 1):.3f} clipped {report.means.get('clipped', 0):.3f} "
            f"tokens {report.trained_tokens} computed {report.computed_tokens}",
            file=sys.stderr,
        )
    at = time.monotonic()
    after = evaluate(sampler, held_out, options)
    marks["evaluate"] += time.monotonic() - at
    rounded = {name: round(value, 1) for name, value in (marks | seconds).items()}
    print(json.dumps({"seed": seed, **compare(before, after), "train": solved, "seconds": rounded}), flush=True)


def questions(options: argparse.Namespace, seed: int, tokenizer: Any) -> tuple[list[Question], list[Question]]:
    """Training rows in a seeded order, and held-out ones with other questions."""
    import reasoning_gym

    settings = {"min_terms": 2, "max_terms": options.max_terms, "min_digits": 1, "max_digits": options.max_digits}
    settings["allow_negation"] = options.allow_negation
    rows = reasoning_gym.create_dataset("chain_sum", size=8192, seed=seed * 100_000, **settings)
    made: dict[str, Question] = {}
    order: list[Question] = []
    for row in rows:
        if row["question"] not in made:
            messages = [{"role": "user", "content": row["question"] + options.suffix}]
            if options.system is not None:
                messages.insert(0, {"role": "system", "content": options.system})
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
            made[row["question"]] = Question(ids, row["question"], row["answer"])
        order.append(made[row["question"]])
    held_out = list(made.values())[: min(options.prompts, len(made) // 2)]
    kept_back = {q.text for q in held_out}
    return [q for q in order if q.text not in kept_back], held_out


def example(number: int, group: int, question: Question, answer: Answer) -> Example:
    ids = np.concatenate([question.ids, answer.ids]).astype(np.int32)
    mask = np.arange(len(ids)) >= len(question.ids)
    logprobs = np.full(len(ids), np.nan, dtype=np.float32)
    logprobs[mask] = answer.logprobs
    return Example(f"recipe/{group}/{number}", group, ids, mask, logprobs, reward=answer.reward)


def evaluate(sampler: Sampler, held_out: Sequence[Question], options: argparse.Namespace) -> dict[str, list[float]]:
    """For each mode the solve rate of each question."""
    result = {}
    for mode in ("sampled",) if options.skip_greedy else ("greedy", "sampled"):
        each = 1 if mode == "greedy" else options.samples
        answers = sampler.answers([q for q in held_out for _ in range(each)], greedy=mode == "greedy")
        solved = np.array([a.exact for a in answers]).reshape(len(held_out), each)
        result[mode] = solved.mean(axis=1).tolist()
        for question, answer in list(zip(held_out, answers[::each], strict=True))[: options.show]:
            text = sampler.tokenizer.decode(answer.ids)
            print(f"{mode} {question.text[-12:]!r} ({question.answer}) -> {text!r} {answer.exact}", file=sys.stderr)
    return result


def compare(before: dict[str, list[float]], after: dict[str, list[float]]) -> dict[str, Any]:
    """Rates, and the z of their difference, paired by question: its mean over its standard error."""
    result: dict[str, Any] = {}
    for mode, first in before.items():
        difference = np.array(after[mode]) - np.array(first)
        error = difference.std(ddof=1) / math.sqrt(len(difference))
        result[mode] = {
            "questions": len(first),
            "before": round(float(np.mean(first)), 3),
            "after": round(float(np.mean(after[mode])), 3),
            "z": round(float(difference.mean() / error), 1) if error else 0.0,
        }
    return result


class Sampler:
    """Answers in batches through the model's own forward pass: left padding, a cache, finished rows taken out."""

    BATCH = 128

    def __init__(self, model: Any, tokenizer: Any, options: argparse.Namespace, random: np.random.Generator) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_tokens = options.max_tokens
        self.length_weight, self.target_tokens = options.length_weight, options.target_tokens
        self.dtype = pick_autocast(options.precision, torch.device("cpu")) or torch.float32
        self.random = random
        self.engine: Any = None
        self.refresh()

    def refresh(self) -> None:
        """Take the learner's weights over, in the type that an engine would hold them in."""
        if self.engine is None:
            self.engine = copy.deepcopy(self.model).to(self.dtype)
        with torch.no_grad():
            for mine, theirs in zip(self.engine.parameters(), self.model.parameters(), strict=True):
                mine.copy_(theirs)

    @torch.no_grad()
    def answers(self, asked: Sequence[Question], *, greedy: bool) -> list[Answer]:
        result: list[Answer] = []
        for start in range(0, len(asked), self.BATCH):
            result.extend(self._batch(asked[start : start + self.BATCH], greedy))
        return result

    def _batch(self, asked: Sequence[Question], greedy: bool) -> list[Answer]:
        width = max(len(q.ids) for q in asked)
        ids = torch.tensor([[2] * (width - len(q.ids)) + q.ids for q in asked])
        mask = torch.tensor([[0] * (width - len(q.ids)) + [1] * len(q.ids) for q in asked])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        drawn: list[list[int]] = [[] for _ in asked]
        logprobs: list[list[float]] = [[] for _ in asked]
        alive = list(range(len(asked)))
        cache = None
        for _ in range(self.max_tokens):
            out = self.engine(
                input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1,
                **({"cache": cache} if cache is not None else {}),
            )  # fmt: skip
            cache = out.cache
            logs = out.logits[:, -1].float().log_softmax(1)
            tokens = logs.argmax(1) if greedy else self._draw(logs)
            taken = logs.gather(1, tokens[:, None]).squeeze(1)
            for row, token, value in zip(alive, tokens.tolist(), taken.tolist(), strict=True):
                drawn[row].append(token)
                logprobs[row].append(value)
            keep = (tokens != self.tokenizer.eos_token_id).nonzero().squeeze(1)
            if len(keep) == 0:
                break
            alive = [alive[i] for i in keep.tolist()]
            ids, positions = tokens[keep, None], positions[keep, -1:] + 1
            mask = torch.cat([mask[keep], torch.ones(len(keep), 1, dtype=mask.dtype)], dim=1)
            if len(keep) < len(tokens):
                cache.batch_select_indices(keep)
        return [self._graded(q, t, p) for q, t, p in zip(asked, drawn, logprobs, strict=True)]

    def _draw(self, logs: torch.Tensor) -> torch.Tensor:
        """Inverse of the cumulative distribution at one uniform number a row: a vocabulary of 49,152 in 1 ms."""
        cumulative = logs.exp().cumsum(1)
        uniform = torch.from_numpy(self.random.random((len(logs), 1))).float() * cumulative[:, -1:]
        return torch.searchsorted(cumulative, uniform).squeeze(1).clamp(max=logs.shape[1] - 1)

    def _graded(self, question: Question, ids: list[int], logprobs: list[float]) -> Answer:
        found = last_number(self.tokenizer.decode(ids, skip_special_tokens=True))
        exact = float(found is not None and equal(found, question.answer))
        reward = exact + self.length_weight * min(1.0, self.target_tokens / len(ids))
        return Answer(np.array(ids), np.array(logprobs, dtype=np.float32), exact, reward)


if __name__ == "__main__":
    raise SystemExit(main())
