"""Tokens per second of the built-in engine through HTTP, against `transformers` generate, and real SGLang on this CPU.

32 answers as 4 groups of 8 to one prompt each, 64 prompt tokens and 64 new ones, sampled at temperature 1 from the
whole vocabulary, bfloat16, all cores. The engine also returns log-probabilities and honours a seed per request;
`generate` does neither. All stay loaded and take turns, so that a busy machine slows each alike.

With SGLANG=1 SGLang takes part, from the environment at SLIPSTREAM_SGLANG_VENV (made by deploy/sglang_cpu/install.sh).
"""

from __future__ import annotations

import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from benchmarks.table import publish, spread

ROOT = Path(__file__).parent.parent
GROUPS, GROUP_SIZE, PROMPT, NEW = 4, 8, 64, 64
ROUNDS = 5
READY_SECONDS = 240
ENVIRONMENT = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
AIMS = {"SmolLM2-135M": ("2", "4"), "10M": ("1.5", "4")}

# A rival process: loads the model, then times one whole batch for each line it reads.
GENERATE = """
import json, sys, time, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()
model.generation_config.eos_token_id = None
print("ready", flush=True)
for line in sys.stdin:
    ids = torch.tensor(json.loads(line))
    begin = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0,
                             top_p=1.0, max_new_tokens=64, min_new_tokens=64, pad_token_id=0)
    assert out.shape[1] == ids.shape[1] + 64
    print(time.perf_counter() - begin, flush=True)
"""

Rival = Callable[[list[list[int]]], float]


@contextmanager
def generate(folder: Path) -> Iterator[Rival]:
    """`transformers` generate in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-c", GENERATE, str(folder)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT
    )
    assert process.stdin is not None and process.stdout is not None
    read, write = process.stdout, process.stdin

    def run(prompts: list[list[int]]) -> float:
        write.write(json.dumps(prompts) + "\n")
        write.flush()
        return float(read.readline())

    try:
        assert read.readline() == "ready\n"
        yield run
    finally:
        process.kill()
        process.wait()


@contextmanager
def server(command: list[str], log: Path) -> Iterator[Rival]:
    """An engine with SGLang's API; every answer is a request of its own, as the rollout service sends them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "--port", str(port)], cwd=ROOT, env=ENVIRONMENT, stdout=out, stderr=out)
    count = GROUPS * GROUP_SIZE
    with (
        httpx.Client(timeout=600, limits=httpx.Limits(max_connections=count)) as http,
        ThreadPoolExecutor(count) as pool,
    ):

        def ask(job: tuple[int, list[int]]) -> int:
            seed, ids = job
            sampling = {"max_new_tokens": NEW, "temperature": 1.0, "ignore_eos": True, "sampling_seed": seed}
            body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True}
            return len(http.post(f"{url}/generate", json=body).json()["output_ids"])

        def run(prompts: list[list[int]]) -> float:
            begin = time.perf_counter()
            assert list(pool.map(ask, enumerate(prompts))) == [NEW] * count
            return time.perf_counter() - begin

        try:
            wait_ready(http, url, process, log)
            yield run
        finally:
            process.terminate()
            process.wait(30)


def wait_ready(http: httpx.Client, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            if http.get(f"{url}/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the server did not start: {log.read_text()[-2000:]}")
        time.sleep(0.2)


def built_in(folder: Path) -> list[str]:
    return [
        sys.executable, "-m", "engine", "--model-path", str(folder), "--dtype", "bfloat16",
        "--max-running-requests", str(GROUPS * GROUP_SIZE), "--context-length", "256",
    ]  # fmt: skip


def sglang(folder: Path) -> list[str]:
    venv = Path(os.environ.get("SLIPSTREAM_SGLANG_VENV", ROOT / ".slipstream" / "sglang"))
    subprocess.run([ROOT / "deploy" / "sglang_cpu" / "install.sh", venv], check=True)
    launcher = ROOT / "deploy" / "sglang_cpu" / "launch.py"
    return [
        str(venv / "bin" / "python"), str(launcher), "--model-path", str(folder), "--dtype", "bfloat16",
        "--skip-tokenizer-init",
    ]  # fmt: skip


def make_10m(folder: Path) -> Path:
    """A random byte-level Llama of 10M parameters with SmolLM2's proportions."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=259, hidden_size=288, intermediate_size=768, num_hidden_layers=11, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=1024, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder


def models(scratch: Path) -> dict[str, tuple[Path, int]]:
    """Name -> (folder, ids to draw prompts from)."""
    from shared.policy.resolve import resolve_model

    data = Path(os.environ.get("SLIPSTREAM_DATA_DIR", ROOT / ".slipstream" / "data"))
    smollm2 = resolve_model("smollm2-135m-instruct", data)
    return {"SmolLM2-135M": (Path(smollm2.path), 49152), "10M": (make_10m(scratch / "10m"), 259)}


def measure(folder: Path, vocab: int, scratch: Path) -> dict[str, list[float]]:
    """Rival -> tokens per second of each round."""
    with ExitStack() as stack:
        rivals = {
            "built-in engine": stack.enter_context(server(built_in(folder), scratch / "engine.log")),
            "transformers generate": stack.enter_context(generate(folder)),
        }
        if os.environ.get("SGLANG") == "1":
            rivals["SGLang 0.5.23 on the CPU"] = stack.enter_context(server(sglang(folder), scratch / "sglang.log"))
        found: dict[str, list[float]] = {name: [] for name in rivals}
        for number in range(-1, ROUNDS):  # the first is a warm-up
            source = random.Random(number)
            prompts = [[source.randrange(3, vocab) for _ in range(PROMPT)] for _ in range(GROUPS)]
            batch = [ids for ids in prompts for _ in range(GROUP_SIZE)]
            for name, run in rivals.items():
                seconds = run(batch)
                if number >= 0:
                    found[name].append(len(batch) * NEW / seconds)
        return found


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for model, (folder, vocab) in models(scratch).items():
            found = measure(folder, vocab, scratch)
            ours = found["built-in engine"]
            for (rival, speeds), aim in zip(found.items(), ("", *AIMS[model]), strict=False):
                # Rounds are pairs: what slowed one round slowed both.
                ratio = (
                    ""
                    if speeds is ours
                    else f"{statistics.median(a / b for a, b in zip(ours, speeds, strict=True)):.2f}"
                )
                rows.append([model, rival, spread(speeds), ratio, aim])
    note = f"32 answers (4 prompts x 8), {PROMPT} + {NEW} tokens, bfloat16, {ROUNDS} rounds taking turns."
    header = ["model", "who", "new tokens/s, median (min to max)", "built-in engine / this", "aim at least"]
    print(publish("engine", "The built-in engine", note, header, rows))


if __name__ == "__main__":
    main()
