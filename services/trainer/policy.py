"""The model as a folder and in memory: loaded by transformers, trained in float32 whatever the folder holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from shared.policy import ModelFolder

DTYPE_KEYS = ("dtype", "torch_dtype")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class UnloadableModel(ValueError):
    """transformers cannot load the folder; the text is one line that says why."""


def load_model(folder: Path, *, device: torch.device, dtype: torch.dtype = torch.float32) -> Any:
    """Any causal language model that transformers loads from a folder. Master weights are float32, so that small
    steps are not rounded away; sdpa attention where the architecture has it, else eager."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]

    options = {"dtype": dtype, "local_files_only": True, "trust_remote_code": False}
    try:
        try:
            model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", **options)
        except (ValueError, ImportError):
            model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", **options)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UnloadableModel(f"{folder}: transformers cannot load the model: {_line(error)}") from error
    return torch.nn.Module.to(model, device)


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
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def stored_dtype(source: ModelFolder) -> torch.dtype:
    """The type that the folder says its weights have; float32 where it does not say."""
    named = next((source.config[key] for key in DTYPE_KEYS if source.config.get(key)), "float32")
    return DTYPES.get(str(named).removeprefix("torch."), torch.float32)


def snapshot_dtype(engine_dtype: str, source: ModelFolder) -> torch.dtype:
    """What engines are given: the type they will compute in, so that no byte is sent only to be rounded away."""
    return stored_dtype(source) if engine_dtype == "auto" else DTYPES[engine_dtype]


def write_model(model: Any, source: ModelFolder, folder: Path, dtype: torch.dtype) -> None:
    """A complete model folder: new weights in `dtype`, config and tokenizer files of `source`."""
    weights = {
        name: value.detach().to(device="cpu", dtype=dtype) if value.is_floating_point() else value.detach().cpu()
        for name, value in model.state_dict().items()
        if name not in tied_names(model)
    }
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, state_dict=weights, max_shard_size=1 << 50)
    config = dict(source.config)
    for key in [key for key in DTYPE_KEYS if key in config] or [DTYPE_KEYS[0]]:
        config[key] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for path in source.tokenizer_files:
        shutil.copyfile(path, folder / path.name)


def tied_names(model: Any) -> set[str]:
    """The entries of the state dict that are another entry's tensor: written once."""
    seen: dict[int, str] = {}
    tied = set()
    for name, value in model.state_dict(keep_vars=True).items():
        if seen.setdefault(id(value), name) != name:
            tied.add(name)
    return tied


def weight_bytes(model: Any, dtype: torch.dtype) -> int:
    """How many bytes the parameters take in `dtype`."""
    return sum(int(p.numel()) for p in model.parameters()) * dtype.itemsize


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
