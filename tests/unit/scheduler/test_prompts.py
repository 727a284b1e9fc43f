from __future__ import annotations

import numpy as np
import pytest

from services.scheduler.data.rows import DataError, Row
from services.scheduler.demonstrations import demonstration
from services.scheduler.prompts import Prompts
from shared.job.spec import JobSpec
from shared.policy import ModelFolder, Tokenizer, resolve_model
from shared.wire.messages import Attempt, SampleKey, decode, encode


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> ModelFolder:
    return resolve_model("tiny", tmp_path_factory.mktemp("models"))


def prompts(model: ModelFolder, **rest) -> Prompts:
    plain = {
        "name": "a", "model": "tiny", "data": {"jsonl": "x", "suffix": " ="},
        "reward": [{"name": "exact", "kind": "exact"}], **rest,
    }  # fmt: skip
    return Prompts(JobSpec.model_validate(plain), model, Tokenizer.load(model.path), "job digest")


def row(question: str = "1 + 1", answer: str = "2") -> Row:
    return Row(index=3, question=question, answer=answer, where="x line 4", fields={"answer": answer})


def ids(segment) -> list[int]:
    return np.frombuffer(segment.token_ids, "<i4").tolist()


def test_a_prompt_is_the_template_around_question_and_suffix_and_nothing_of_it_is_trained(model) -> None:
    found = prompts(model).prompt(row())
    text = Tokenizer.load(model.path).decode(ids(found))
    assert text == "1 + 1 =\n"
    assert set(found.mask) == {0}
    assert (found.columns, found.spans) == ({}, [])
    found.check()


def test_digests_say_what_a_sample_was_made_from(model) -> None:
    found = prompts(model).digests(row())
    assert (found.model, found.row, found.job) == (model.digest, row().digest, "job digest")
    assert found.tokenizer
    assert found.template


def test_a_prompt_fits_when_prompt_and_new_tokens_fit_the_context(model) -> None:
    limit = model.context_length - 64 - len(ids(prompts(model).prompt(row("", ""))))
    fits, exceeds = row("x" * limit), row("x" * (limit + 1))
    found = prompts(model)
    assert found.too_long(fits) == ""
    assert found.too_long(exceeds) == "its prompt has 193 tokens and 64 are to follow; the model's context has 256"


def test_more_new_tokens_than_context_leave_no_place_for_any_prompt(model) -> None:
    with pytest.raises(DataError, match="leave no place for a prompt") as raised:
        prompts(model, sampling={"max_tokens": 255})
    assert raised.value.path == "sampling.max_tokens"


def test_a_demonstration_teaches_the_answer_and_its_end_and_is_a_whole_trajectory(model) -> None:
    supervised = prompts(model, algorithm={"kind": "sft"})
    key = SampleKey("j", 0, 0)
    made = demonstration(key, Attempt(1, 1), row(), supervised, "scheduler-x", now=5.0)
    read = decode(type(made), encode(made))
    assert read == made
    assert (read.finish_reason, read.text, read.trained_versions()) == ("demonstration", "2", [])
    answer = read.segments[1]
    assert ids(answer) == [*Tokenizer.load(model.path).encode_plain("2"), 2]
    assert set(answer.mask) == {1}


def test_a_demonstration_must_fit_the_context_with_its_answer(model) -> None:
    supervised = prompts(model, algorithm={"kind": "sft"})
    assert supervised.too_long(row(answer="x" * 200)) == ""
    assert "prompt and answer" in supervised.too_long(row(answer="x" * 250))
