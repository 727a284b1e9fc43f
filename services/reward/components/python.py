"""python: the user's `def reward(answer_text: str, row: dict) -> float`. Runs in a process of its own, never here.

The function is named `module:function` (importable), or `path.py:function` (absolute, or relative to the folder the
service was started in). The file is imported once a process; its digest goes into each score.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import math
import sys
import traceback
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any

from services.reward.components.case import Case, Component, GradingError, Prepared


def blame(error: BaseException, file: str | None) -> str:
    """One line: where in the user's file, what kind of error, what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    where = next((f"{Path(f.filename).name}:{f.lineno}: " for f in reversed(frames) if file and f.filename == file), "")
    if isinstance(error, SyntaxError) and error.lineno:
        where = f"{Path(error.filename or '').name}:{error.lineno}: "
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())[:300]
    return f"{where}{type(error).__name__}{': ' + text if text else ''}"


def load_file(path: Path) -> ModuleType:
    name = f"slipstream_reward_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise GradingError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))  # so that a reward may import its neighbours
    spec.loader.exec_module(module)
    return module


def load(function: str) -> tuple[Callable[[str, dict[str, Any]], Any], str | None]:
    """The user's function and the file it stands in."""
    source, colon, name = function.rpartition(":")
    if not (colon and source and name):
        raise GradingError(f"function {function!r} is not module:function or path.py:function")
    is_file = source.endswith(".py")
    path = Path(source).absolute()
    if is_file and not path.is_file():
        raise GradingError(f"no file {path}")
    try:
        module = load_file(path) if is_file else importlib.import_module(source)
    except GradingError:
        raise
    except BaseException as error:
        raise GradingError(f"cannot import {source}: {blame(error, str(path) if is_file else None)}") from error
    target: Any = module
    for part in name.split("."):
        target = getattr(target, part, None)
    if not callable(target):
        raise GradingError(f"{source} has no function {name!r}")
    return target, getattr(module, "__file__", None)


def number(value: Any) -> float:
    """What the function returned, if it is a finite number."""
    if not isinstance(value, Real):
        raise GradingError(f"returned {value!r:.80} ({type(value).__name__}), which is no number")
    result = float(value)
    if not math.isfinite(result):
        raise GradingError(f"returned {result}, which is no finite number")
    return result


def prepare(component: Component) -> Prepared:
    function, file = load(component.spec.function)
    memory = component.spec.memory_mebibytes
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""

    def grade(case: Case) -> float:
        try:
            return number(function(case.text or "", dict(case.row)))
        except GradingError:
            raise
        except MemoryError as error:
            raise GradingError(f"{blame(error, file)} (memory_mebibytes is {memory})") from error
        except BaseException as error:  # whatever the user's code raises, SystemExit included, is its failure
            raise GradingError(blame(error, file)) from error

    return Prepared(grade, digest)
