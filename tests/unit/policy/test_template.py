from __future__ import annotations

from pathlib import Path

import pytest

from shared.policy.errors import ModelError
from shared.policy.template import ChatTemplate, read_template

MESSAGES = [{"role": "user", "content": "hi"}]


def render(source: str, **tokens: str) -> str:
    return ChatTemplate(source, Path("model"), tokens).render(MESSAGES)


def test_a_template_sees_messages_tokens_and_that_the_assistant_is_next() -> None:
    source = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}:{{ m['content'] | trim }}]{% endfor %}"
    assert render(source + "{% if add_generation_prompt %}>{% endif %}", bos_token="<s>") == "<s>[user:hi]>"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}{% break %}{% endfor %}x", "x"),
        ("{% generation %}a{{ messages[0].content }}{% endgeneration %}b", "ahib"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hi"}]'),
        ("{{ '<é>' | tojson }}", '"<é>"'),
        ("{{ strftime_now('%Y-%m-%d') }}", "2025-01-01"),
        ("{% if tools is defined and tools %}t{% endif %}n", "n"),
    ],
)
def test_what_templates_of_known_models_use_is_there(source: str, text: str) -> None:
    assert render(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no system role') }}",
        "{{ messages[0].content.none() }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_fails_or_reaches_too_far_is_one_line(source: str) -> None:
    with pytest.raises(ModelError, match="the chat template in model refuses these messages") as error:
        render(source)
    assert "\n" not in str(error.value)


def test_a_template_that_does_not_parse_is_told() -> None:
    with pytest.raises(ModelError, match="the chat template in model is broken"):
        render("{% for m in messages %}")


def test_a_template_is_found_wherever_a_version_of_transformers_has_put_it(tmp_path: Path) -> None:
    assert read_template(tmp_path, {}) is None
    assert read_template(tmp_path, {"chat_template": "a"}) == "a"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert read_template(tmp_path, {"chat_template": named}) == "d"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "j"}')
    assert read_template(tmp_path, {}) == "j"
    (tmp_path / "chat_template.jinja").write_text("x")
    assert read_template(tmp_path, {"chat_template": "a"}) == "x"


def test_a_template_that_is_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not text"):
        read_template(tmp_path, {"chat_template": {"a": 1}})
