"""The heavy half of a trainer: model, optimizer, and their files. Every method blocks; the loop runs it in its compute
thread. No bus.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from services.trainer.checkpoint import MODEL, STATE, Manifest, save
from services.trainer.examples import Example
from services.trainer.folders import write_folder
from services.trainer.learner import Learner, StepReport
from services.trainer.policy import (
    load_model,
    pick_autocast,
    pick_device,
    snapshot_dtype,
    weight_bytes,
    write_model,
)
from shared.job.seeds import trainer_seed
from shared.job.spec import JobSpec
from shared.policy import ModelFolder
from shared.wire.messages import FileEntry

OPTIMIZER_COPIES = 2  # AdamW's two moments, each as large as the weights


class Workbench:
    """`load` first; then `step` and the writers."""

    def __init__(self, spec: JobSpec, source: ModelFolder, *, device: str, share_prompts: bool) -> None:
        self.spec = spec
        self.source = source
        self.device = pick_device(device)
        self.share_prompts = share_prompts
        self._learner: Learner | None = None

    @property
    def learner(self) -> Learner:
        if self._learner is None:
            raise RuntimeError("the model is not loaded yet")
        return self._learner

    def load(self, checkpoint: Path | None) -> None:
        """Model and optimizer as the checkpoint has them, or as the job starts."""
        if self.spec.deterministic:
            torch.use_deterministic_algorithms(True)
        torch.manual_seed(trainer_seed(self.spec.seed))
        algorithm = self.spec.algorithm
        reference = None
        if algorithm.kind == "grpo" and algorithm.kl > 0:
            reference = load_model(self.source.path, device=self.device).requires_grad_(False)
        folder = self.source.path if checkpoint is None else checkpoint / MODEL
        model = load_model(folder, device=self.device)
        self._learner = Learner(
            model,
            algorithm=algorithm,
            sampling=self.spec.sampling,
            reference=reference,
            autocast=pick_autocast(algorithm.precision, self.device),
            pad_id=_pad_id(model),
            share_prompts=self.share_prompts,
        )
        if checkpoint is not None:
            state = torch.load(checkpoint / STATE, map_location="cpu", weights_only=True)
            self._learner.optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["random"])
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(state["random_device"], self.device)

    def step(self, examples: Sequence[Example], step: int, interrupted: Callable[[], bool]) -> StepReport:
        return self.learner.step(examples, step, interrupted=interrupted)

    def write_snapshot(self, folder: Path) -> list[FileEntry]:
        """The weights as engines load them."""
        dtype = snapshot_dtype(self.spec.engine.dtype, self.source)
        model = self.learner.model
        fill = functools.partial(_fill_model, model, self.source, dtype=dtype)
        return write_folder(folder, fill, needs_bytes=weight_bytes(model, dtype))

    def write_checkpoint(self, root: Path, manifest: Manifest) -> Path:
        """Everything to go on from, durably."""
        learner = self.learner

        def fill(folder: Path) -> None:
            write_model(learner.model, self.source, folder / MODEL, torch.float32)
            state: dict[str, Any] = {"optimizer": learner.optimizer.state_dict(), "random": torch.get_rng_state()}
            if self.device.type == "cuda":
                state["random_device"] = torch.cuda.get_rng_state(self.device)
            torch.save(state, folder / STATE)

        size = weight_bytes(learner.model, torch.float32) * (1 + OPTIMIZER_COPIES)
        return save(root, manifest, fill, needs_bytes=size)


def _fill_model(model: Any, source: ModelFolder, folder: Path, *, dtype: torch.dtype) -> None:
    write_model(model, source, folder, dtype)


def _pad_id(model: Any) -> int:
    """Any id that exists: padding is masked, but it is looked up."""
    pad = model.config.pad_token_id
    return pad if isinstance(pad, int) and pad >= 0 else 0
