"""The rival of `grpo_step`: TRL's `GRPOTrainer` on the CPU, one optimizer step for each line it reads.

Runs in an environment of its own and imports nothing of this project:

    python trl_peer.py '{"model": FOLDER, "rows": JSONL, "answers": 16, "max_tokens": 32, "bf16": true, ...}'

One JSON line a step on stdout: its seconds (from the line that it read until the optimizer has moved), how many of
them went into generating, its CPU seconds, the tokens of its prompts and answers. The model is loaded in float32 and
computes under autocast when `bf16` is set, which is the precision of our own trainer. The rest is what TRL does by
default; logging, saving and the progress bar are off, since they are not part of a step.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class TimedTrainer(GRPOTrainer):
    """Notes how long the answers of a step took."""

    generate_seconds = 0.0

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        made = super()._generate(*args, **kwargs)
        self.generate_seconds += time.perf_counter() - begin
        return made


class PatternReward:
    """The weighted sum of the patterns that an answer's text has. Remembers the step's texts for counting."""

    __name__ = "patterns"

    def __init__(self, patterns: list[tuple[str, float]]) -> None:
        self.patterns = [(re.compile(pattern), weight) for pattern, weight in patterns]
        self.prompts: list[Any] = []
        self.completion_ids: list[list[int]] = []

    def __call__(
        self, prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **_: Any
    ) -> list[float]:
        self.prompts, self.completion_ids = prompts, completion_ids
        return [sum(w for p, w in self.patterns if p.search(answer[0]["content"])) for answer in completions]


class Turns(TrainerCallback):
    """Waits for a line before each step and writes one after it."""

    def __init__(self, reward: PatternReward, tokenizer: Any, out: Any) -> None:
        self.reward, self.tokenizer, self.out = reward, tokenizer, out
        self.trainer: TimedTrainer | None = None
        self.begin = self.cpu_begin = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        assert self.trainer is not None
        if not sys.stdin.readline():
            os._exit(0)  # the benchmark has what it wanted
        self.trainer.generate_seconds = 0.0
        self.begin, self.cpu_begin = time.perf_counter(), time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        seconds, cpu = time.perf_counter() - self.begin, time.process_time() - self.cpu_begin
        assert self.trainer is not None
        prompts = [
            self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
            for prompt in self.reward.prompts
        ]
        said = {
            "seconds": seconds,
            "generate": self.trainer.generate_seconds,
            "cpu": cpu,
            "prompt_tokens": sum(map(len, prompts)),
            "tokens": sum(map(len, self.reward.completion_ids)),
        }
        print(json.dumps(said), file=self.out, flush=True)


def main(options: dict[str, Any]) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    rows = [json.loads(line) for line in Path(options["rows"]).read_text().splitlines()]
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": row["question"]}]} for row in rows])
    tokenizer = AutoTokenizer.from_pretrained(options["model"])
    reward = PatternReward(options["patterns"])
    turns = Turns(reward, tokenizer, out)
    config = GRPOConfig(
        output_dir=options["scratch"],
        use_cpu=True,
        bf16=options["bf16"],
        fp16=False,
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=options["answers"],
        num_generations=options["group_size"],
        gradient_accumulation_steps=1,
        gradient_checkpointing=False,
        num_iterations=1,
        beta=0.0,
        temperature=1.0,
        max_completion_length=options["max_tokens"],
        learning_rate=options["learning_rate"],
        lr_scheduler_type="constant",
        shuffle_dataset=False,
        max_steps=1_000_000,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = TimedTrainer(
        model=options["model"],
        processing_class=tokenizer,
        reward_funcs=reward,
        args=config,
        train_dataset=data,
        callbacks=[turns],
    )
    turns.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
