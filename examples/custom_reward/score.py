"""A reward of one's own: are the words there, and is it one short sentence?

The service calls `score` with the answer and the data row, in a process of its own. Whatever it raises is told as an
error of this file and line, and the answer then counts as not graded, never as 0.
"""

import re

LONGEST = 15


def score(answer_text: str, row: dict) -> float:
    """1 for one sentence of at most 15 words with every wanted word; less for each thing that is missing."""
    words = re.findall(r"[a-z']+", answer_text.lower())
    sentences = [part for part in re.split(r"[.!?]+", answer_text) if part.strip()]
    used = sum(word in words for word in row["words"]) / len(row["words"])
    short = len(words) <= LONGEST and len(sentences) == 1
    return 0.75 * used + 0.25 * short
