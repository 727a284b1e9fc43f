"""Starts real SGLang 0.5.23 on a CPU without AMX: VENV/bin/python launch.py --model-path DIR --port N [SGLang's flags].

Run by the interpreter of the environment that install.sh made. For the contract suite and for comparison, not for
serving: the built-in engine is several times faster on a CPU.

SGLang imports GPU kernels by name before it decides not to use them. Three stand-ins are put in place first, at module
level, because SGLang's worker processes import this module again when they are spawned:
- two operators that torchvision's GPU build defines, without which its import fails beside a CPU build of torch;
- an empty `sgl_kernel`, whose functions fail only when called;
- the hash that seeded sampling draws from, computed with torch.
"""

import importlib.machinery
import os
import sys
import types
from collections.abc import Callable
from typing import Any

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

CPU_FLAGS = (
    "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
    "--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled",
    "--skip-server-warmup", "--sleep-on-idle", "--max-total-tokens", "32768", "--max-running-requests", "64",
)  # fmt: skip
MASK = 0xFFFFFFFF
Library: Any = torch.library.Library  # untyped in torch


def _multiply(x: torch.Tensor, factor: int) -> torch.Tensor:
    return (x * factor) & MASK


def _rotate(x: torch.Tensor, bits: int) -> torch.Tensor:
    return ((x << bits) | (x >> (32 - bits))) & MASK


def _block(state: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
    """One round of MurmurHash3 (32 bits) over a four-byte word."""
    word = _multiply(_rotate(_multiply(word, 0xCC9E2D51), 15), 0x1B873593)
    return (_rotate(state ^ word, 13) * 5 + 0xE6546B64) & MASK


def murmur(seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 of (64-bit seed, position, column) for each row and column, as uint32."""
    seed = seed.view(torch.int64)
    rows = torch.zeros_like(seed)
    for word in (seed & MASK, (seed >> 32) & MASK, positions.to(torch.int64) & MASK):
        rows = _block(rows, word)
    state = _block(rows[:, None], columns.to(torch.int64)[None, :]) ^ 16
    state = _multiply(state ^ (state >> 16), 0x85EBCA6B)
    state = _multiply(state ^ (state >> 13), 0xC2B2AE35)
    return (state ^ (state >> 16)).to(torch.uint32)


def _stand_in(name: str) -> Callable[..., Any]:
    """What `sgl_kernel` gives for any function asked of it."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU build here")

    return missing


def prepare() -> list[Any]:
    """Puts the stand-ins in place; the libraries must be kept alive."""
    vision = Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        vision.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    kernel = types.ModuleType("sgl_kernel")
    kernel.__spec__ = importlib.machinery.ModuleSpec("sgl_kernel", None)
    kernel.__path__ = []
    kernel.__getattr__ = _stand_in  # type: ignore[method-assign]
    sys.modules["sgl_kernel"] = kernel
    hashes = Library("sgl_kernel", "FRAGMENT")
    hashes.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor cols) -> Tensor")
    hashes.impl("murmur_hash32_cpu", murmur, "CPU")
    if "--enable-deterministic-inference" in sys.argv:
        # Its batch-invariant kernels are for GPUs. Seeds are honoured without them; bitwise equality is not promised.
        import sglang.srt.batch_invariant_ops as invariant

        invariant.enable_batch_invariant_mode = lambda *_, **__: None
    return [vision, hashes]


_LIBRARIES = prepare()


def main() -> None:
    """Starts the server with the flags that a CPU needs, then the user's own."""
    from sglang.launch_server import run_server
    from sglang.srt.arg_groups import choices
    from sglang.srt.server_args import prepare_server_args

    choices.add_deterministic_attention_backend_choices(["torch_native"])
    run_server(prepare_server_args([*CPU_FLAGS, *sys.argv[1:]]))


if __name__ == "__main__":
    main()
