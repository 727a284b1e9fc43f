"""The policy as files: model folder, tokenizer, chat template. No torch.

job's `model` -> resolve_model -> ModelFolder -> Tokenizer.load -> ids for the engine
"""

from shared.policy.errors import ModelError
from shared.policy.folder import ModelFolder, open_folder
from shared.policy.resolve import SHIPPED, resolve_model
from shared.policy.tokenizer import Tokenizer

__all__ = ["SHIPPED", "ModelError", "ModelFolder", "Tokenizer", "open_folder", "resolve_model"]
