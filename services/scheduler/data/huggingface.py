"""Rows from a Hugging Face data set: a folder, or a name on the hub that is downloaded to one.

Which files make a split follows the data card (README.md, `configs`), else the file names. JSON lines are read where
they lie; CSV, JSON and Parquet are written once as JSON lines under the data folder, so that any row can be read from
its place in bounded memory.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from services.scheduler.data.jsonl import JsonlRows
from services.scheduler.data.rows import DataError, plain
from shared.job.spec import DataSpec
from shared.wire.messages import digest

PATH = "data.huggingface"
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
SPLIT_WORDS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "eval"),
    "validation": ("validation", "val", "dev", "valid"),
}


def huggingface_rows(spec: DataSpec, data_dir: Path, *, answer_needed: bool) -> JsonlRows:
    """The split of `spec` as JSON lines."""
    name = spec.huggingface or ""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        folder = download(name)
    files = split_files(folder, spec.subset, spec.split)
    lines = [file if file.suffix == ".jsonl" else converted(file, data_dir / "datasets") for file in files]
    return JsonlRows(lines, spec.prompt, spec.answer, path=PATH, answer_needed=answer_needed)


def download(name: str) -> Path:
    """The hub's data set in the hub's own cache."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?", name):
        raise DataError(f"{name} is neither a folder nor a data set's name on the hub", PATH)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        patterns = [f"*{suffix}" for suffix in SUFFIXES]
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=[*patterns, "README.md"]))
    except RepositoryNotFoundError as error:
        raise DataError(
            f"no folder {name}, and the hub has no data set of this name (or it is private)", PATH
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"no folder {name}, and the hub did not give the data set: {text}", PATH) from error


def split_files(folder: Path, subset: str | None, split: str) -> list[Path]:
    """The files of a split, in name order."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in files}
    if not names:
        raise DataError(f"{folder} has no {', '.join(SUFFIXES)} file", PATH)
    patterns = card_patterns(folder / "README.md", subset, split)
    if patterns is not None:
        chosen = [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]
    else:
        chosen = by_name(list(names), subset, split)
    if not chosen:
        raise DataError(f"{folder} has no file of split {split!r} (files: {', '.join(list(names)[:5])})", "data.split")
    return [names[name] for name in chosen]


def card_patterns(card: Path, subset: str | None, split: str) -> list[str] | None:
    """What the data card says about the split's files; None when it says nothing."""
    if not card.is_file():
        return None
    match = re.match(r"^---\s*\n(.*?)\n---", card.read_text(errors="replace"), flags=re.DOTALL)
    try:
        told = yaml.safe_load(match[1]) if match else None
    except yaml.YAMLError:
        return None
    configs = told.get("configs") if isinstance(told, dict) else None
    if not isinstance(configs, list) or not configs:
        return None
    named = {str(config.get("config_name", "default")): config for config in configs if isinstance(config, dict)}
    if subset is None and len(named) > 1 and "default" not in named:
        raise DataError(f"the data set has subsets, name one: {', '.join(named)}", "data.subset")
    config = named.get(subset or "default", next(iter(named.values())) if subset is None else None)
    if config is None:
        raise DataError(f"no subset {subset!r} (there are: {', '.join(named)})", "data.subset")
    data_files = config.get("data_files")
    if isinstance(data_files, str):
        return [data_files]
    patterns: list[str] = []
    for entry in data_files if isinstance(data_files, list) else ():
        if isinstance(entry, str):
            patterns.append(entry)
        elif isinstance(entry, dict) and str(entry.get("split")) == split:
            path = entry.get("path")
            patterns += [str(p) for p in path] if isinstance(path, list) else [str(path)]
    return patterns


def by_name(names: Sequence[str], subset: str | None, split: str) -> list[str]:
    """Files whose name or folder says the split. Files that name no split at all are `train`."""

    def says(name: str, words: Sequence[str]) -> bool:
        return any(word in re.split(r"[^a-z0-9]+", name.lower()) for word in words)

    inside = [name for name in names if subset is None or says(name, [subset.lower()]) or name.startswith(f"{subset}/")]
    chosen = [name for name in inside if says(name, SPLIT_WORDS.get(split, (split.lower(),)))]
    if chosen or split != "train":
        return chosen
    other = [word for words in SPLIT_WORDS.values() for word in words]
    return [name for name in inside if not says(name, other)]


def converted(file: Path, folder: Path) -> Path:
    """`file` as JSON lines in `folder`, written once for its size and time of change."""
    status = file.stat()
    name = digest(f"{file.resolve()} {status.st_size} {status.st_mtime_ns}".encode())[:32]
    target = folder / f"{name}.jsonl"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{name}.{os.getpid()}.part"
        try:
            with partial.open("w") as out:
                for row in READERS[file.suffix](file):
                    out.write(json.dumps(plain(row)) + "\n")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    return target


def csv_rows(file: Path) -> Iterator[Any]:
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
        try:
            yield from csv.DictReader(stream, strict=True)
        except csv.Error as error:
            raise DataError(f"{file} is not CSV: {error}", PATH) from error


def json_rows(file: Path) -> Iterator[Any]:
    """One JSON list of objects, or JSON lines under the name .json."""
    with file.open(errors="replace") as stream:
        start = stream.read(64).lstrip()[:1]
        stream.seek(0)
        try:
            if start == "[":
                yield from json.load(stream)
            else:
                yield from (json.loads(line) for line in stream if line.strip())
        except json.JSONDecodeError as error:
            raise DataError(f"{file} is not JSON: {error.msg} at line {error.lineno}", PATH) from error


def parquet_rows(file: Path) -> Iterator[Any]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise DataError(f"{file} is Parquet: pip install 'slipstream-rl[parquet]'", PATH) from error
    try:
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=1024):
            yield from batch.to_pylist()
    except ArrowException as error:
        raise DataError(f"{file} is not Parquet: {error}", PATH) from error


READERS = {".csv": csv_rows, ".json": json_rows, ".parquet": parquet_rows}
