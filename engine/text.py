"""Text in and out of the engine, where the model folder has a tokenizer.

Training never needs it: prompts come as ids and answers leave as ids. It serves `text` prompts, `text` in answers and
stop strings.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from engine.architecture import ModelError, read_json

# A token may add no whole character (one byte of several), so look a little further back than the stop string is long.
SLACK_TOKENS = 8


class Text:
    """A folder's tokenizer.json."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a bad file
            raise ModelError(f"{path} cannot be read: {error}") from None
        self.eos_id = self._eos_id(folder)

    def _eos_id(self, folder: Path) -> int | None:
        path = folder / "tokenizer_config.json"
        token = read_json(path).get("eos_token") if path.exists() else None
        if isinstance(token, dict):
            token = token.get("content")
        return None if token is None else self._tokenizer.token_to_id(token)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: list[int], *, skip_special: bool = True) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special))


def load_text(folder: Path) -> Text | None:
    """The folder's tokenizer, or None when it has none."""
    return Text(folder) if (folder / "tokenizer.json").exists() else None


class StopStrings:
    """Tells after each token whether one of some strings has appeared at the answer's end."""

    def __init__(self, text: Text, strings: tuple[str, ...], *, skip_special: bool) -> None:
        self._text, self._strings, self._skip_special = text, strings, skip_special
        self._window = max(len(s.encode()) for s in strings) + SLACK_TOKENS

    def found(self, ids: list[int]) -> str | None:
        """The string that the last token completed."""
        tail = self._text.decode(ids[-self._window :], skip_special=self._skip_special)
        return next((s for s in self._strings if s in tail), None)

    def trim(self, text: str) -> str:
        """`text` up to the first stop string."""
        return text[: min((at for at in map(text.find, self._strings) if at >= 0), default=len(text))]
