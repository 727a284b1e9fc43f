"""What part of an answer is graded."""

import re

import pytest

from services.reward import extract


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7 + 5 = 12", "12"),
        ("The answer is -3.", "-3"),
        ("it costs 1,234,567 euros", "1234567"),
        ("one of 1,2,3", "3"),
        ("12,3456", "3456"),
        ("7-5", "5"),
        ("x = −4", "-4"),  # noqa: RUF001
        ("pi is 3.14159", "3.14159"),
        ("step2", "2"),
        ("no number", None),
        ("", None),
        ("٣", None),
    ],
)
def test_the_last_number_is_the_one_a_reader_would_name(text: str, number: str | None) -> None:
    assert extract.last_number(text) == number


def test_a_minus_between_two_operands_is_no_sign() -> None:
    assert extract.last_number("(9)-4") == "4"
    assert extract.last_number("result: (-4") == "-4"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("<answer> 5 </answer>", "5"),
        ("<answer>4</answer> no, <answer>5</answer>", "5"),
        ("<answer>5", None),
        ("5</answer>", None),
        ("<answer></answer>", ""),
        ("nothing", None),
    ],
)
def test_the_last_complete_tag_counts(text: str, part: str | None) -> None:
    assert extract.tag(text, "answer") == part


def test_a_pattern_gives_its_first_group_of_its_last_match() -> None:
    assert extract.regex("a=1 a=2", re.compile(r"a=(\d)")) == "2"
    assert extract.regex("a=1 a=2", re.compile(r"a=\d")) == "a=2"
    assert extract.regex("b", re.compile(r"a=(\d)")) is None


def test_a_megabyte_of_digits_and_commas_takes_no_time_to_speak_of() -> None:
    assert extract.last_number("1,111" * 200_000) is not None
    assert extract.tag("<answer>" * 100_000, "answer") is None


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="whole, last_number, tag, regex"):
        extract.extract("first_number", "1", tag_name="", pattern=None)
