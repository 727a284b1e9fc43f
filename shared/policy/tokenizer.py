"""Text to ids and back, once: prompt text -> template -> ids for the engine; ids -> text for the reward.

Text from data never yields a special token: `<|im_end|>` inside a question is encoded as the letters it is made of.
Text without such strings is encoded exactly as `transformers` would encode the rendered chat.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import tokenizers

from shared.policy.errors import ModelError
from shared.policy.files import read_json
from shared.policy.template import ChatTemplate, read_template

STAND_IN = (
    0xF0000  # first code point of a private plane: a stand-in for a special token's text while a template renders
)


class Tokenizer:
    """The tokenizer and template of one model folder. Build it with `load`."""

    def __init__(self, folder: Path, content: str, settings: dict[str, Any], eos_ids: Iterable[int]) -> None:
        try:
            self._marked = tokenizers.Tokenizer.from_str(content)
            self._plain = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises bare Exception for a file it cannot read
            raise ModelError(f"{folder / 'tokenizer.json'} is not a tokenizer: {error}") from error
        for each in (self._marked, self._plain):
            each.no_truncation()
            each.no_padding()
        self._plain.encode_special_tokens = True
        self._folder = folder
        self._settings = settings
        self.digest = hashlib.sha256(content.encode()).hexdigest()
        self.bos_id = self._id_of("bos_token")
        own_eos = self._id_of("eos_token")
        self.eos_ids = tuple(sorted({*eos_ids, *([] if own_eos is None else [own_eos])}))
        if not self.eos_ids:
            raise ModelError(f"{folder} names no end token (eos_token_id in generation_config.json or config.json)")
        self.end_id = self.eos_ids[0] if own_eos is None else own_eos  # what a taught answer ends with
        added = self._marked.get_added_tokens_decoder().values()
        self._special = sorted((token.content for token in added if token.special), key=len, reverse=True)
        source = read_template(folder, settings)
        names = {"bos_token", "eos_token", "unk_token", "pad_token"}
        tokens = {name: text for name in names if (text := self._text_of(name)) is not None}
        self._template = None if source is None else ChatTemplate(source, folder, {"bos_token": "", **tokens})

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """From a model folder; `ModelError` when it cannot be used."""
        path = folder / "tokenizer.json"
        try:
            content = path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise ModelError(f"{folder} has no tokenizer.json; save a fast tokenizer beside the weights") from error
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read {path}: {error}") from error
        settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
        return cls(folder, content, settings, eos_ids_of(folder))

    # --- text to ids ------------------------------------------------------------------------------------------------

    def render_prompt(
        self, text: str, system: str | None = None, template: Literal["chat", "raw"] = "chat"
    ) -> list[int]:
        """The ids of a prompt, ready for the engine: as a chat of one question, or the text itself."""
        if template == "raw":
            if system is not None:
                raise ModelError("a system message needs template: chat")
            return [*self._raw_start, *self.encode_plain(text)]
        messages = [{"role": "user", "content": text}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        return self.render_chat(messages)

    def render_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The ids of a chat up to where the assistant begins to speak."""
        if self._template is None:
            raise ModelError(f"{self._folder} has no chat template; set data.template: raw")
        stand_ins = self._stand_ins(message["content"] for message in messages)
        rendered = self._template.render(
            [{**message, "content": _replace(message["content"], stand_ins)} for message in messages]
        )
        texts = {stand_in: text for text, stand_in in stand_ins.items()}
        ids: list[int] = []
        for piece in re.split(f"([{''.join(texts)}])", rendered) if texts else [rendered]:
            if piece in texts:
                ids += self.encode_plain(texts[piece])
            elif piece:
                ids += self._marked.encode(piece, add_special_tokens=False).ids
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """The ids of `text` itself: nothing is added, and no part of it becomes a special token."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    # --- ids to text ------------------------------------------------------------------------------------------------

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        text: str = self._marked.decode(list(ids), skip_special_tokens=skip_special)
        return text

    # --- facts ------------------------------------------------------------------------------------------------------

    @property
    def vocabulary_size(self) -> int:
        size: int = self._marked.get_vocab_size(with_added_tokens=True)
        return size

    @property
    def has_template(self) -> bool:
        return self._template is not None

    @property
    def template_digest(self) -> str:
        """sha256 of the chat template; empty when there is none."""
        return "" if self._template is None else self._template.digest

    @cached_property
    def special_ids(self) -> frozenset[int]:
        return frozenset(i for text in self._special if (i := self._marked.token_to_id(text)) is not None)

    @cached_property
    def _raw_start(self) -> list[int]:
        """The start token where the model was trained with one: once, and never an end token."""
        added: list[int] = self._marked.encode("", add_special_tokens=True).ids
        wanted = added[:1] == [self.bos_id] or self._settings.get("add_bos_token") is True
        return [self.bos_id] if wanted and self.bos_id is not None else []

    def _stand_ins(self, texts: Iterable[str]) -> dict[str, str]:
        """For each special token that occurs in `texts`, longest first, a character that does not."""
        joined = "\n".join(texts)
        found = [text for text in self._special if text in joined]
        if not found:
            return {}
        free = (c for code in range(STAND_IN, STAND_IN + 0xFFFD) if (c := chr(code)) not in joined)
        return dict(zip(found, free, strict=False))

    def _text_of(self, name: str) -> str | None:
        value = self._settings.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        return text if isinstance(text, str) else None

    def _id_of(self, name: str) -> int | None:
        text = self._text_of(name)
        found: int | None = None if text is None else self._marked.token_to_id(text)
        return found


def _replace(text: str, stand_ins: dict[str, str]) -> str:
    for special, stand_in in stand_ins.items():
        text = text.replace(special, stand_in)
    return text


def eos_ids_of(folder: Path) -> set[int]:
    """Every id that ends a turn, by generation_config.json and config.json."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            value = read_json(folder / name).get("eos_token_id")
            found |= {i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)}
    return found
