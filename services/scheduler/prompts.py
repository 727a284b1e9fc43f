"""A row as the engine gets it: prompt text tokenised once, here, and never again. Also what travels with each sample.

Pure but for the tokenizer it is given.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from services.scheduler.data.rows import DataError, Row
from shared.job.spec import JobSpec
from shared.policy import ModelError, ModelFolder, Tokenizer
from shared.wire.messages import Digests, Segment

CACHED_PROMPTS = 4096
SURE = 2  # a prompt with less than 1/SURE bytes than there are free tokens fits; no need to tokenise it


def segment(role: str, ids: list[int], trained: bool) -> Segment:
    """Ids that were not sampled: no columns, no versions."""
    mask = (np.ones if trained else np.zeros)(len(ids), dtype=np.uint8)
    return Segment(role=role, token_ids=np.array(ids, dtype="<i4").tobytes(), mask=mask.tobytes())


class Prompts:
    """Prompts and answers of one job's rows."""

    def __init__(self, spec: JobSpec, model: ModelFolder, tokenizer: Tokenizer, job_digest: str = "") -> None:
        self.context_length = model.context_length
        self.stop_token_ids = list(tokenizer.eos_ids)
        self._spec, self._tokenizer = spec, tokenizer
        self._digests = Digests(
            model=model.digest,
            tokenizer=tokenizer.digest,
            template=tokenizer.template_digest if spec.data.template == "chat" else "",
            job=job_digest,
        )
        self._cache: OrderedDict[str, Segment] = OrderedDict()
        self._supervised = spec.algorithm.kind == "sft"
        sampled = 0 if self._supervised and not spec.evaluation.prompts else spec.sampling.max_tokens
        self._room = model.context_length - sampled
        try:
            self._overhead = len(self._render(""))
        except ModelError as error:
            raise DataError(str(error), "data.template") from error
        if self._room <= self._overhead:
            raise DataError(
                f"the model's context has {model.context_length} tokens: {sampled} new tokens and a template of "
                f"{self._overhead} leave no place for a prompt",
                "sampling.max_tokens",
            )

    def prompt(self, row: Row) -> Segment:
        """The prefix that is generated from."""
        found = self._cache.get(row.digest)
        if found is None:
            found = self._cache[row.digest] = segment("prompt", self._render(row.question), trained=False)
            if len(self._cache) > CACHED_PROMPTS:
                self._cache.popitem(last=False)
        else:
            self._cache.move_to_end(row.digest)
        return found

    def answer(self, row: Row) -> Segment:
        """The answer a demonstration teaches, its end token included."""
        return segment("assistant", self._answer_ids(row), trained=True)

    def digests(self, row: Row) -> Digests:
        known = self._digests
        return Digests(
            model=known.model, tokenizer=known.tokenizer, template=known.template, job=known.job, row=row.digest
        )

    def too_long(self, row: Row) -> str:
        """Empty when the row fits into the model's context, else what does not."""
        text = len(row.question.encode()) + len(self._spec.data.suffix.encode())
        answer = len(row.answer.encode()) if self._supervised else 0
        if SURE * (text + answer) + self._overhead < self._room:
            return ""
        prompt = len(self._render(row.question))
        if prompt > self._room:
            new = self.context_length - self._room
            return (
                f"its prompt has {prompt} tokens and {new} are to follow; the model's context has {self.context_length}"
            )
        if self._supervised and prompt + len(self._answer_ids(row)) > self.context_length:
            return f"prompt and answer have more tokens than the model's context ({self.context_length})"
        return ""

    def _render(self, question: str) -> list[int]:
        data = self._spec.data
        return self._tokenizer.render_prompt(question + data.suffix, data.system, data.template)

    def _answer_ids(self, row: Row) -> list[int]:
        return [*self._tokenizer.encode_plain(row.answer), self._tokenizer.end_id]
