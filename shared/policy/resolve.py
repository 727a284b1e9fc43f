"""What a job calls its model -> a checked folder on this machine.

A shipped name is made here; `job:ID` is a finished job's newest checkpoint; a path is taken as it is; anything else
that looks like `owner/name` comes from the Hugging Face hub.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path

from shared.policy.errors import ModelError
from shared.policy.folder import ModelFolder, open_folder
from shared.policy.making import make_once
from shared.policy.smollm2 import make_smollm2
from shared.policy.tiny import make_tiny, make_tiny_qwen2
from shared.wire.messages import JOB_ID

SHIPPED: dict[str, Callable[[Path], None]] = {
    "smollm2-135m-instruct": make_smollm2,
    "tiny": make_tiny,
    "tiny-qwen2": make_tiny_qwen2,
}
HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}(?:@[\w./-]{1,96})?$", flags=re.ASCII)
VERSION = re.compile(r"^([0-9]{1,12})\.([0-9]{1,12})$")
HUB_FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer.model")


def resolve_model(spec: str, data_dir: Path) -> ModelFolder:
    """The model folder that `spec` names; `ModelError`, in one line, when there is none that can be used."""
    if spec in SHIPPED:
        return open_folder(make_once(data_dir / "models", spec, SHIPPED[spec]))
    if spec.startswith("job:"):
        return _checkpoint(spec.removeprefix("job:"), data_dir)
    path = Path(spec).expanduser()
    if spec.startswith(("/", "./", "../", "~")) or path.is_dir():
        return open_folder(path.resolve())
    if HUB_ID.match(spec):
        return _from_hub(spec, data_dir)
    near = difflib.get_close_matches(spec, SHIPPED, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"shipped are {', '.join(SHIPPED)}"
    raise ModelError(f"{spec!r} is neither a folder, a hub id (owner/name), job:ID, nor a shipped model; {hint}")


def _checkpoint(job: str, data_dir: Path) -> ModelFolder:
    """The newest checkpoint of `job`: highest step, then highest epoch."""
    root = data_dir / "checkpoints"
    if not JOB_ID.match(job) or not (root / job).is_dir():
        known = sorted(p.name for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
        near = difflib.get_close_matches(job, known, n=1, cutoff=0.4)
        hint = f"; did you mean job:{near[0]}?" if near else ""
        raise ModelError(f"job {job!r} has no checkpoints under {root}{hint}")
    found = {
        (int(match[1]), int(match[2])): folder / "model"
        for folder in (root / job).iterdir()
        if (match := VERSION.match(folder.name)) and (folder / "model").is_dir()
    }
    if not found:
        raise ModelError(f"job {job!r} has no finished checkpoint under {root / job}")
    return open_folder(found[max(found)])


def _from_hub(spec: str, data_dir: Path) -> ModelFolder:
    """From the hub's cache on this machine when it is whole, else fetched to the data folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository, _, revision = spec.partition("@")
    try:
        return open_folder(Path(snapshot_download(repository, revision=revision or None, local_files_only=True)))
    except (LocalEntryNotFoundError, ModelError):
        pass  # not cached, or only in part: fetch it
    target = data_dir / "models" / spec.replace("/", "--")
    try:
        snapshot_download(repository, revision=revision or None, local_dir=target, allow_patterns=list(HUB_FILES))
    except Exception as error:  # the client raises errors of several libraries: http, hub, files
        raise ModelError(f"cannot fetch {spec} from the Hugging Face hub: {_reason(error)}") from error
    return open_folder(target)


def _reason(error: Exception) -> str:
    kind = type(error).__name__
    if kind in ("RepositoryNotFoundError", "GatedRepoError", "RevisionNotFoundError"):
        return "no such model or revision, or it needs a token (set HF_TOKEN)"
    first = str(error).strip().splitlines()
    return f"{first[0] if first else kind}; without network, give a folder or a shipped model ({', '.join(SHIPPED)})"
