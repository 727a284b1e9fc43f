"""Writes data/train.csv and data/test.jsonl beside this file: word problems with one-digit sums.

The layout is that of a Hugging Face data set folder: a card (README.md) that says which file is which split.
"""

import csv
import itertools
import json
from pathlib import Path

NAMES = ["Ada", "Ben", "Cleo", "Dan"]
THINGS = ["apples", "coins", "shells"]


def rows():
    for number, (name, thing, first, second) in enumerate(
        itertools.product(NAMES, THINGS, range(1, 10, 2), range(1, 10))
    ):
        question = f"{name} has {first} {thing} and finds {second} more. How many {thing} does {name} have now?"
        yield number, {"problem": question, "solution": first + second}


if __name__ == "__main__":
    folder = Path(__file__).parent / "data"
    folder.mkdir(exist_ok=True)
    with (folder / "train.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["problem", "solution"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for number, row in rows() if number % 5)
    lines = [json.dumps(row) + "\n" for number, row in rows() if number % 5 == 0]
    (folder / "test.jsonl").write_text("".join(lines), encoding="utf-8")
