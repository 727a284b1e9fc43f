"""A model's chat template: Jinja from a folder somebody else wrote, so it runs sandboxed and sees only messages.

What the template may use is what `transformers` offers, with one difference: `strftime_now` answers with a fixed day,
since a prompt must be the same on every day it is made.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from shared.policy.errors import ModelError
from shared.policy.files import read_json

TEMPLATE_DAY = datetime.datetime(2025, 1, 1)


class Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's words for trainers; here it is only read past."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """Compiled once; renders messages to text."""

    def __init__(self, source: str, where: Path, tokens: dict[str, str]) -> None:
        self.source = source
        self.digest = hashlib.sha256(source.encode()).hexdigest()
        self._where = where
        self._tokens = tokens
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the chat template in {where} is broken: {error}") from error

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """The text up to where the assistant begins to speak."""
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._tokens)
        except Exception as error:  # a template is a program: whatever it raises, it is the template's
            raise ModelError(f"the chat template in {self._where} refuses these messages: {error}") from error


def read_template(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    """The template's source, from wherever a version of `transformers` has put it; None when there is none."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read {path}: {error}") from error
    found = tokenizer_config.get("chat_template")
    if found is None and (folder / "chat_template.json").is_file():
        found = read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(found, list):  # several, by name
        found = next((t.get("template") for t in found if isinstance(t, dict) and t.get("name") == "default"), None)
    if found is not None and not isinstance(found, str):
        raise ModelError(f"the chat template in {folder} is not text")
    return found


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = TEMPLATE_DAY.strftime
    environment.filters["tojson"] = _plain_json()
    return environment


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _plain_json() -> Callable[..., str]:
    """Jinja's own filter escapes for HTML, which models were not trained on."""

    def tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, sort_keys: bool = False) -> str:
        return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, sort_keys=sort_keys)

    return tojson
