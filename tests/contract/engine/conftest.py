"""The engines that the suite holds to one contract, each started once: the built-in one, and real SGLang.

SGLang takes part with SGLANG=1. Its environment is made at SLIPSTREAM_SGLANG_VENV (default .slipstream/sglang) by
deploy/sglang_cpu/install.sh. Both serve one tiny seeded Qwen2 in float32 with a byte-level tokenizer. After each test
the engine is running again, with the first weights under the version v0.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

ROOT = Path(__file__).parents[3]
START_SECONDS = {"builtin": 60.0, "sglang": 180.0}
CONTEXT = 2048
VOCAB = 259
EOS = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Stream:
    """A streaming /generate in a thread: what has come so far, and the end."""

    def __init__(self, engine: Engine, body: dict[str, Any]) -> None:
        self.chunks: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._read, args=(engine.url, body), daemon=True)
        self._thread.start()

    def _read(self, url: str, body: dict[str, Any]) -> None:
        try:
            with httpx.stream("POST", f"{url}/generate", json=body | {"stream": True}, timeout=120) as reply:
                for line in reply.iter_lines():
                    if line.startswith("data: {"):
                        with self._news:
                            self.chunks.append(json.loads(line.removeprefix("data: ")))
                            self._news.notify_all()
        finally:
            with self._news:
                self._over = True
                self._news.notify_all()

    @property
    def tokens(self) -> int:
        return len(self.chunks[-1]["output_ids"]) if self.chunks else 0

    def wait_tokens(self, count: int, seconds: float = 60) -> None:
        with self._news:
            assert self._news.wait_for(lambda: self.tokens >= count or self._over, seconds)
        assert self.tokens >= count, f"the stream ended early: {self.chunks[-1:]}"

    def result(self, seconds: float = 120) -> dict[str, Any]:
        """The last chunk, once the stream has ended."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the stream has not ended"
        assert self.chunks
        return self.chunks[-1]


@dataclass
class Engine:
    """A running engine and the client side of its API."""

    kind: str
    url: str
    http: httpx.Client
    log: Path

    def get(self, path: str) -> httpx.Response:
        return self.http.get(self.url + path)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(self.url + path, json=body)

    def ask(self, ids: list[int] | list[list[int]], *, beside: dict[str, Any] | None = None, **sampling: Any) -> Any:
        """The answer of /generate to `ids`; `beside` are fields next to the sampling parameters."""
        reply = self.post("/generate", input_ids=ids, sampling_params=sampling, **(beside or {}))
        assert reply.status_code == 200, reply.text
        return reply.json()

    def stream(self, ids: list[int], *, rid: str = "", beside: dict[str, Any] | None = None, **sampling: Any) -> Stream:
        """A long answer on its way: it does not end by itself unless the parameters say so."""
        sampling = {"ignore_eos": True, "max_new_tokens": 1500, "temperature": 0} | sampling
        return Stream(
            self, {"input_ids": ids, "sampling_params": sampling} | ({"rid": rid} if rid else {}) | (beside or {})
        )

    def version(self) -> str:
        return str(self.get("/model_info").json()["weight_version"])

    def load(self, folder: Path, version: str, **beside: Any) -> httpx.Response:
        return self.post("/update_weights_from_disk", model_path=str(folder), weight_version=version, **beside)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _command(kind: str, folder: Path, port: int) -> list[str]:
    common = ["--model-path", str(folder), "--port", str(port), "--dtype", "float32", "--weight-version", "v0"]
    if kind == "builtin":
        return [
            sys.executable, "-m", "engine", *common, "--max-running-requests", "8", "--context-length", str(CONTEXT),
            "--deterministic",
        ]  # fmt: skip
    venv = Path(os.environ.get("SLIPSTREAM_SGLANG_VENV", ROOT / ".slipstream" / "sglang"))
    subprocess.run([ROOT / "deploy" / "sglang_cpu" / "install.sh", venv], check=True, stdout=sys.stderr)
    return [
        str(venv / "bin" / "python"), str(ROOT / "deploy" / "sglang_cpu" / "launch.py"), *common, "--host", "127.0.0.1",
        "--context-length", str(CONTEXT), "--stream-interval", "1", "--enable-metrics",
        "--enable-deterministic-inference",
    ]  # fmt: skip


@contextmanager
def _running(kind: str, folder: Path, log: Path) -> Iterator[Engine]:
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            _command(kind, folder, port), cwd=ROOT, env=environment, stdout=out, stderr=out, preexec_fn=_die_with_parent
        )
    try:
        with httpx.Client(timeout=120) as http:
            deadline = time.monotonic() + START_SECONDS[kind]
            while not _answers(http, url):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.1)
            yield Engine(kind, url, http, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _answers(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(f"{url}/ready", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def _save_model(folder: Path, *, seed: int, **changes: Any) -> Path:
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True, "initializer_range": 0.25, "bos_token_id": 0, "eos_token_id": EOS,
        "pad_token_id": 2,
    }  # fmt: skip
    model = Qwen2ForCausalLM(Qwen2Config(**shape | changes)).float()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=_byte_tokenizer(), bos_token="<s>", eos_token="</s>", pad_token="<p>"
    ).save_pretrained(folder)
    return folder


def _byte_tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    specials = ["<s>", "</s>", "<p>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate([*specials, *alphabet])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    return tokenizer


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights that engines start with."""
    return _save_model(tmp_path_factory.mktemp("model"), seed=1)


@pytest.fixture(scope="session")
def other_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights of the same shape."""
    return _save_model(tmp_path_factory.mktemp("other"), seed=2)


@pytest.fixture(scope="session")
def reference(model_dir: Path) -> Any:
    """The same model as transformers computes it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


@pytest.fixture(
    scope="session",
    params=[
        "builtin",
        pytest.param(
            "sglang",
            marks=[
                pytest.mark.sglang,
                pytest.mark.skipif(os.environ.get("SGLANG") != "1", reason="SGLANG=1 runs real SGLang too"),
            ],
        ),
    ],
)
def _engine(
    request: pytest.FixtureRequest, model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    with _running(request.param, model_dir, tmp_path_factory.mktemp("engine") / "log") as engine:
        yield engine


@pytest.fixture
def engine(_engine: Engine, model_dir: Path) -> Iterator[Engine]:
    """An engine at rest, with the weights of `model_dir` as v0."""
    yield _engine
    _engine.post("/continue_generation")
    _engine.post("/abort_request", abort_all=True)
    if _engine.version() != "v0" or _engine.get("/model_info").json()["model_path"] != str(model_dir):
        reply = _engine.load(model_dir, "v0")
        assert reply.status_code == 200, reply.text


@pytest.fixture(scope="session")
def prompt() -> list[int]:
    """A prompt of twelve tokens."""
    return [0, 72, 104, 79, 33, 150, 201, 9, 77, 13, 244, 60]
