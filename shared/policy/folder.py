"""A model folder in Hugging Face's layout, checked without loading the weights.

The same folder serves the engine, the trainer and `transformers`: config.json, safetensors, tokenizer.json.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shared.policy.errors import ModelError
from shared.policy.files import read_json
from shared.policy.weights import weight_files

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
TEXT_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip


@dataclass(frozen=True)
class ModelFolder:
    """A folder that has been checked by `open_folder`."""

    path: Path
    config: dict[str, Any]
    architecture: str
    context_length: int
    weights: tuple[Path, ...]

    @property
    def tokenizer_files(self) -> tuple[Path, ...]:
        """What has to go along with new weights of this model, config.json left out."""
        return tuple(p for name in TEXT_FILES if name != "config.json" and (p := self.path / name).is_file())

    @cached_property
    def digest(self) -> str:
        """sha256 over the names and contents of config, tokenizer and weights. Reads every byte, once."""
        whole = hashlib.sha256()
        texts = [p for name in TEXT_FILES if (p := self.path / name).is_file()]
        for path in sorted([*texts, *self.weights], key=lambda p: p.name):
            try:
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
            whole.update(f"{path.name} {content}\n".encode())
        return whole.hexdigest()


def open_folder(path: Path) -> ModelFolder:
    """The model in `path`; `ModelError` when something that training or generation needs is missing or broken."""
    if not path.is_dir():
        raise ModelError(f"model folder {path} does not exist" if not path.exists() else f"{path} is not a folder")
    config = read_json(path / "config.json")
    architectures = config.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(architecture, str) or not architecture.endswith("ForCausalLM"):
        named = f"has the architecture {architecture}" if architecture else "names no architecture"
        raise ModelError(f"{path / 'config.json'} {named}; a causal language model (...ForCausalLM) is needed")
    context = next((config[k] for k in CONTEXT_KEYS if isinstance(config.get(k), int) and config[k] > 0), None)
    if context is None:
        raise ModelError(f"{path / 'config.json'} does not say the context length (max_position_embeddings)")
    weights = tuple(weight_files(path))
    if not (path / "tokenizer.json").is_file():
        raise ModelError(f"{path} has no tokenizer.json; save a fast tokenizer beside the weights")
    return ModelFolder(path=path, config=config, architecture=architecture, context_length=context, weights=weights)
