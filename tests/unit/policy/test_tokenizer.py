from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers.processors import TemplateProcessing

from shared.policy import ModelError, Tokenizer
from shared.policy.tiny import END, START

Change = Callable[..., Path]
NEWLINE = 3 + ord("\n")


def ids_of(text: str) -> list[int]:
    return [3 + byte for byte in text.encode()]


@pytest.fixture(scope="module")
def tiny(made: Path) -> Tokenizer:
    return Tokenizer.load(made / "models" / "tiny")


def test_a_byte_level_prompt_is_a_start_token_the_bytes_and_a_line_end(tiny: Tokenizer) -> None:
    assert tiny.render_prompt("hé") == [START, *ids_of("hé"), NEWLINE]
    assert tiny.render_prompt("hi", system="be kind") == [START, *ids_of("be kind\nhi\n")]
    assert tiny.render_prompt("hi", template="raw") == ids_of("hi")
    with pytest.raises(ModelError, match="a system message needs template: chat"):
        tiny.render_prompt("hi", system="be kind", template="raw")


def test_facts_of_the_tiny_tokenizer(tiny: Tokenizer) -> None:
    assert tiny.vocabulary_size == 259
    assert (tiny.bos_id, tiny.eos_ids, tiny.end_id) == (START, (END,), END)
    assert tiny.special_ids == {0, 1, 2}
    assert tiny.has_template
    assert len(tiny.digest) == len(tiny.template_digest) == 64


@given(st.text(max_size=200))
def test_every_text_comes_back(made: Path, text: str) -> None:
    tokenizer = Tokenizer.load(made / "models" / "tiny")
    assert tokenizer.decode(tokenizer.encode_plain(text)) == text


@given(st.lists(st.sampled_from(["<|end|>", "<|start|>", "<|pad|>", "<|", "end", "|>", "a", " ", "\n", "\U000f0000"])))
def test_data_text_yields_no_special_token(made: Path, pieces: list[str]) -> None:
    tokenizer = Tokenizer.load(made / "models" / "tiny")
    text = "".join(pieces)
    for ids in (tokenizer.render_prompt(text), tokenizer.render_prompt("a", system=text)):
        assert [i for i in ids if i in tokenizer.special_ids] == [START]
    assert tokenizer.render_prompt(text)[1:-1] == ids_of(text)
    assert not tokenizer.special_ids & set(tokenizer.render_prompt(text, template="raw"))
    assert not tokenizer.special_ids & set(tokenizer.encode_plain(text))


def test_special_tokens_are_left_out_of_decoded_text_unless_asked_for(tiny: Tokenizer) -> None:
    ids = [START, *ids_of("hi"), END]
    assert tiny.decode(ids) == "hi"
    assert tiny.decode(ids, skip_special=False) == "<|start|>hi<|end|>"


def add_start_token(folder: Path) -> None:
    """What the tokenizers of many models do when asked for special tokens: a start token before every text."""
    library = Library.from_file(str(folder / "tokenizer.json"))
    library.post_processor = TemplateProcessing(
        single="<|start|> $A <|end|>", special_tokens=[("<|start|>", 1), ("<|end|>", 2)]
    )
    library.save(str(folder / "tokenizer.json"))


def test_a_start_token_is_never_doubled_and_an_end_token_never_added(folder: Path) -> None:
    add_start_token(folder)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.render_prompt("hi") == [START, *ids_of("hi\n")]
    assert tokenizer.render_prompt("hi", template="raw") == [START, *ids_of("hi")]
    assert tokenizer.render_prompt("<|start|>hi", template="raw") == [START, *ids_of("<|start|>hi")]


def test_a_model_that_wants_a_start_token_by_its_settings_gets_one(changed: Change) -> None:
    tokenizer = Tokenizer.load(changed("tokenizer_config.json", add_bos_token=True))
    assert tokenizer.render_prompt("hi", template="raw") == [START, *ids_of("hi")]


def test_truncation_and_padding_that_a_tokenizer_file_brings_are_ignored(folder: Path) -> None:
    library = Library.from_file(str(folder / "tokenizer.json"))
    library.enable_truncation(3)
    library.enable_padding(length=50)
    library.save(str(folder / "tokenizer.json"))
    assert Tokenizer.load(folder).render_prompt("hello") == [START, *ids_of("hello\n")]


def test_every_token_that_ends_a_turn_counts(changed: Change) -> None:
    changed("generation_config.json", eos_token_id=[2, 7])
    assert Tokenizer.load(changed("config.json", eos_token_id=5)).eos_ids == (2, 5, 7)


def test_a_model_without_an_end_token_is_refused(changed: Change) -> None:
    changed("generation_config.json", eos_token_id=None)
    changed("config.json", eos_token_id=None)
    with pytest.raises(ModelError, match="names no end token"):
        Tokenizer.load(changed("tokenizer_config.json", eos_token=None))


def test_a_model_without_a_template_takes_raw_prompts_only(changed: Change) -> None:
    tokenizer = Tokenizer.load(changed("tokenizer_config.json", chat_template=None))
    assert not tokenizer.has_template
    assert tokenizer.template_digest == ""
    assert tokenizer.render_prompt("hi", template="raw") == ids_of("hi")
    with pytest.raises(ModelError, match=r"has no chat template; set data\.template: raw"):
        tokenizer.render_prompt("hi")


def test_a_tokenizer_file_that_is_none_is_told(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a tokenizer") as error:
        Tokenizer.load(folder)
    assert "\n" not in str(error.value)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        Tokenizer.load(folder)


def test_digests_tell_tokenizers_and_templates_apart(changed: Change, tiny: Tokenizer) -> None:
    other = Tokenizer.load(changed("tokenizer_config.json", chat_template="{{ messages[0]['content'] }}"))
    assert other.digest == tiny.digest
    assert other.template_digest != tiny.template_digest
