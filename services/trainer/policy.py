"""The model to train: loaded by transformers, weights in float32 whatever the folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


class UnloadableModel(ValueError):
    """transformers cannot load the folder; the text is one line that says why."""


def load_model(folder: Path, *, device: torch.device, dtype: torch.dtype = torch.float32) -> Any:
    """Any causal language model that transformers loads from a folder. Master weights are float32, so that small
    steps are not rounded away; sdpa attention where the architecture has it, else eager."""
    from transformers import AutoModelForCausalLM

    options = {"dtype": dtype, "local_files_only": True, "trust_remote_code": False}
    try:
        try:
            model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", **options)
        except (ValueError, ImportError):
            model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", **options)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UnloadableModel(f"{folder}: transformers cannot load the model: {_line(error)}") from error
    return model.to(device)


def pick_device(wanted: str) -> torch.device:
    """`auto`: the GPU if there is one."""
    if wanted != "auto":
        return torch.device(wanted)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pick_autocast(precision: str, device: torch.device) -> torch.dtype | None:
    """The type to compute in, None: that of the weights. `auto`: bfloat16 where the hardware multiplies it."""
    if precision == "float32":
        return None
    if precision == "bfloat16" or device.type == "cuda" or cpu_multiplies_bfloat16():
        return torch.bfloat16
    return None


def cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has bf16 dot products; in software they are slower than float32."""
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
