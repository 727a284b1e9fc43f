"""YAML as job files need it: plain data only, numbers as people write them, nothing ambiguous.

Against PyYAML's own safe loader: `1e-5` is a number and `no`, `on`, `12:30` and dates are text (YAML 1.2), a key given
twice is an error, and anchors, aliases and tags are refused, so that a small text cannot become a large one. Depth and
number of values are bounded, since the reader runs where other people's requests wait.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_VALUES = 20_000


class BadYaml(ValueError):
    """Text that is no job file, with the line where reading stopped (0: no line)."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line else message)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (as PyYAML has it)

    depth = 0
    values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise BadYaml("anchors and aliases (& and *) are not allowed; write the value out", line)
        if getattr(event, "tag", None) is not None:
            raise BadYaml(f"the tag {event.tag} is not allowed; write plain values", line)
        if self.depth >= MAX_DEPTH:
            raise BadYaml(f"nested deeper than {MAX_DEPTH} levels", line)
        self.values += 1
        if self.values > MAX_VALUES:
            raise BadYaml(f"more than {MAX_VALUES} values", line)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise BadYaml("a key must be a name", line)
            key = key_node.value
            if key in found:
                raise BadYaml(f"{key} is given twice", line)
            found[key] = self.construct_object(value_node, deep=True)
        return found


_Loader.add_constructor("tag:yaml.org,2002:map", lambda loader, node: loader.construct_mapping(node))
_NUMBER_START = list("-+0123456789.")
for _tag, _pattern, _first in (
    ("null", r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", _NUMBER_START),
    ("float", r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", _NUMBER_START),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def read_yaml(text: str | bytes) -> Any:
    """The plain data in `text`; `BadYaml` with the line otherwise."""
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise BadYaml(f"{size} bytes; a job file has at most {MAX_BYTES}")
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise BadYaml("not UTF-8 text", text[: error.start].count(b"\n") + 1) from error  # type: ignore[arg-type]
    try:
        return yaml.load(decoded, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "cannot be read"
        raise BadYaml(f"not YAML: {problem}", mark.line + 1 if mark else 0) from error
    except yaml.reader.ReaderError as error:
        line = decoded[: error.position].count("\n") + 1 if isinstance(error.position, int) else 0
        raise BadYaml(f"not YAML: the character {chr(error.character)!r} is not allowed", line) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, BadYaml):
            raise
        raise BadYaml(f"not YAML: {error}") from error
