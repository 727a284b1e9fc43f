"""Writes prompts.jsonl beside this file: pairs of nouns that a sentence has to use. Run it again after a change."""

import itertools
import json
from pathlib import Path

NOUNS = ["river", "stone", "lamp", "garden", "winter", "letter", "bridge", "apple", "clock", "window", "boat", "song"]


def rows():
    for first, second in itertools.permutations(NOUNS, 2):
        question = f"Write one short sentence with the words {first} and {second}."
        yield {"question": question, "words": [first, second]}


if __name__ == "__main__":
    lines = [json.dumps(row) + "\n" for row in rows()]
    Path(__file__).with_name("prompts.jsonl").write_text("".join(lines), encoding="utf-8")
