"""The one error of this part."""

from __future__ import annotations


class ModelError(ValueError):
    """A model, tokenizer or template that cannot be used: what, where and what to do, in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
