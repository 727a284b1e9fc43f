"""Tiny seeded models on disk, as transformers saves them, and the decode loop around one without any HTTP."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once, when torch is imported
import torch

from engine.architecture import read_architecture
from engine.decoder import Decoder
from engine.loop import Loop, Report
from engine.probe import settle
from engine.requests import Request, Returned, SamplingParams
from engine.slots import Slots
from engine.weights import load_weights

VOCAB = 259
CONTEXT = 160
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 144, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": CONTEXT, "initializer_range": 0.25, "bos_token_id": 0,
    "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip


def make_model(kind: str, **changes: Any) -> Any:
    """A seeded random model: `llama` (untied head) or `qwen2` (tied head, bias on q, k and v)."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(7)
    config, model = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}[kind]
    made = model(config(**SHAPE | {"tie_word_embeddings": kind == "qwen2"} | changes)).float().eval()
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return made


@pytest.fixture(scope="session")
def save_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Any, Path]]:
    """`save_model(kind, **config)`: the model and its folder."""

    def save(kind: str, shard: str = "5GB", **changes: Any) -> tuple[Any, Path]:
        folder = tmp_path_factory.mktemp(kind)
        model = make_model(kind, **changes)
        model.save_pretrained(folder, max_shard_size=shard)
        return model, folder

    return save


@pytest.fixture(scope="session")
def llama(save_model: Any) -> tuple[Any, Path]:
    return save_model("llama")  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def qwen2(save_model: Any) -> tuple[Any, Path]:
    return save_model("qwen2")  # type: ignore[no-any-return]


class Running:
    """A decode loop whose requests are waited for in the test's thread."""

    def __init__(
        self, folder: Path, *, slots: int, fixed: bool, dtype: torch.dtype, single_rows: bool, length: int
    ) -> None:
        weights = load_weights(folder, read_architecture(folder), dtype)
        decoder = Decoder(weights, slots, length, fixed=fixed)
        if fixed:
            settle(decoder)
        decoder.single_rows = decoder.single_rows or single_rows
        self._news = threading.Condition()
        self.failures: list[str] = []
        self.loop = Loop(Slots(decoder, frozenset({1})), "v0", self._deliver, self.failures.append)
        self.loop.start()
        self._numbers = 0

    def _deliver(self, report: Report) -> None:
        with self._news:
            self._news.notify_all()

    def request(self, ids: list[int], *, kept: bool = False, prompt_logprobs: bool = False, **params: Any) -> Request:
        self._numbers += 1
        params = {"ignore_eos": True, "max_new_tokens": 16} | params
        returned = Returned(logprobs=True, kept_ids=kept, prompt_logprobs_from=0 if prompt_logprobs else -1)
        return Request(f"r{self._numbers:06d}", ids, SamplingParams(**params), returned)

    def answer(self, *requests: Request) -> list[Request]:
        """Submits all at once and waits for all."""
        self.loop.submit(list(requests)).result(10)
        self.wait(*requests)
        return list(requests)

    def wait(self, *requests: Request) -> None:
        with self._news:
            assert self._news.wait_for(lambda: all(r.finish is not None for r in requests), 60)

    def ask(self, ids: list[int], **params: Any) -> Request:
        return self.answer(self.request(ids, **params))[0]


@pytest.fixture
def running() -> Iterator[Callable[..., Running]]:
    """`running(folder, slots=4, fixed=False)`: a started loop, stopped after the test."""
    started: list[Running] = []

    def start(
        folder: Path,
        *,
        slots: int = 4,
        fixed: bool = False,
        dtype: torch.dtype = torch.float32,
        single_rows: bool = False,
        length: int = CONTEXT,
    ) -> Running:
        started.append(Running(folder, slots=slots, fixed=fixed, dtype=dtype, single_rows=single_rows, length=length))
        return started[-1]

    yield start
    for one in started:
        one.loop.stop(10)
        assert not one.failures
