"""Pydantic's findings in the words of somebody who wrote a YAML file: what stands there, and what would be right."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from shared.job.spec import JobSpec
from shared.wire.messages import Problem

MAX_SHOWN = 60
KINDS = {
    "int_type": "a whole number", "int_from_float": "a whole number", "int_parsing_size": "a smaller number",
    "float_type": "a number", "string_type": "text", "bool_type": "true or false", "finite_number": "a finite number",
    "tuple_type": "a list", "list_type": "a list", "dict_type": "a section of `key: value` lines",
    "model_type": "a section of `key: value` lines", "mapping_type": "a section of `key: value` lines",
    "model_attributes_type": "a section of `key: value` lines",
}  # fmt: skip
BOUNDS = {"greater_than": ("over", "gt"), "greater_than_equal": ("at least", "ge"), "less_than": ("under", "lt"),
          "less_than_equal": ("at most", "le")}  # fmt: skip


def complaints(details: Sequence[ErrorDetails]) -> list[Problem]:
    """Each finding as one line. A list whose entries are wrong also counts as too short; that one is left out."""
    places = [detail["loc"] for detail in details]
    return [
        _complaint(detail)
        for detail in details
        if detail["type"] != "too_short"
        or not any(place[: len(detail["loc"])] == detail["loc"] and place != detail["loc"] for place in places)
    ]


def _complaint(detail: ErrorDetails) -> Problem:
    place = detail["loc"]
    return Problem(path=".".join(str(part) for part in place), message=_message(detail, place))


def _message(detail: ErrorDetails, place: tuple[int | str, ...]) -> str:
    kind, found, limits = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(place)
    if kind == "missing":
        return f"is missing: {_description(place)}"
    if kind in KINDS:
        return f"must be {KINDS[kind]}, not {shown(found)}"
    if kind in BOUNDS:
        word, key = BOUNDS[kind]
        bound = limits[key]
        return f"must be {word} {int(bound) if bound == int(bound) else bound}, not {shown(found)}"
    if kind == "literal_error":
        choices = _choices(place)
        near = difflib.get_close_matches(str(found), choices, n=1)
        return f"must be one of {', '.join(choices)}, not {shown(found)}" + (
            f"; did you mean {near[0]}?" if near else ""
        )
    if kind in ("too_short", "string_too_short"):
        return "must not be empty"
    if kind in ("too_long", "string_too_long"):
        return f"is too long: at most {limits['max_length']} {'characters' if isinstance(found, str) else 'entries'}"
    if kind == "string_pattern_mismatch":
        return f"{shown(found)} is no valid {place[-1]}, which matches {limits['pattern']} ({_description(place)})"
    return f"{detail['msg'].lower()}, not {shown(found)}"


def shown(value: Any) -> str:
    """A value as its writer would recognise it, on one line and not too long."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = repr(value if len(value) <= MAX_SHOWN else value[:MAX_SHOWN] + "...")
        return f"the text {text}"
    return str(value)[:MAX_SHOWN]


def _unknown_key(place: tuple[int | str, ...]) -> str:
    *parents, key = place
    known = list(_section(parents).model_fields)
    near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.6)
    if near:
        return f"unknown key; did you mean {near[0]}?"
    elsewhere = {name: path for path, name in _all_fields()}
    near = difflib.get_close_matches(str(key), elsewhere, n=1, cutoff=0.8)
    if near:
        return f"unknown key here; did you mean {elsewhere[near[0]]}?"
    return f"unknown key; known here: {', '.join(known)}"


def _description(place: tuple[int | str, ...]) -> str:
    *parents, key = place
    field = _section(parents).model_fields.get(str(key))
    return (field.description if field else None) or "it has no default"


def _choices(place: tuple[int | str, ...]) -> list[str]:
    parents = [part for part in place if isinstance(part, str)]
    annotation = _section(parents[:-1]).model_fields[parents[-1]].annotation
    return [str(choice) for choice in _literals(annotation)]


def _literals(annotation: Any) -> Iterator[Any]:
    for argument in get_args(annotation):
        if isinstance(argument, str):
            yield argument
        else:
            yield from _literals(argument)


def _section(place: Any) -> type[BaseModel]:
    """The section at a place of the file; list positions only lead through."""
    section: type[BaseModel] = JobSpec
    for part in place:
        if isinstance(part, str):
            section = _models(section.model_fields[part].annotation)[0]
    return section


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (tuple, Union, types.UnionType):
        return [model for argument in get_args(annotation) for model in _models(argument)]
    return []


def _all_fields(section: type[BaseModel] = JobSpec, prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, field in section.model_fields.items():
        for model in _models(field.annotation):
            yield from _all_fields(model, f"{prefix}{name}.")
        yield f"{prefix}{name}", name
