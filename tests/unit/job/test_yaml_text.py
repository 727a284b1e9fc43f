from __future__ import annotations

import pytest

from shared.job.yaml_text import MAX_BYTES, MAX_VALUES, BadYaml, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("2.5E+3", 2500.0),
        (".5", 0.5),
        ("-3", -3),
        ("true", True),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("on", "on"),
        ("012", "012"),
        ("0x10", "0x10"),
        ("12:30", "12:30"),
        ("2026-01-31", "2026-01-31"),
        ("1_000", "1_000"),
        ("'8'", "8"),
    ],
)
def test_a_value_means_what_its_writer_meant(text: str, value: object) -> None:
    assert read_yaml(f"key: {text}") == {"key": value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "line 1: not YAML: expected ',' or ']'"),
        ("a: 1\nb: c: d", "line 2: not YAML: mapping values are not allowed here"),
        ("\ta: 1", "line 1: not YAML: found character"),
        ("a: 1\nb: \x01", r"line 2: not YAML: the character '\x01' is not allowed"),
        ("a: 1\na: 2", "line 2: a is given twice"),
        ("s:\n  a: 1\n  a: 2", "line 3: a is given twice"),
        ("a: &x [1]\nb: *x", "line 1: anchors and aliases"),
        ("a: !!python/object/apply:os.system [true]", "line 1: the tag"),
        ("a: !mine 1", "line 1: the tag !mine is not allowed"),
        ("? [1]\n: 2", "line 1: a key must be a name"),
        ("a: 1\n---\nb: 2", "line 2: not YAML"),
        (b"a: 1\nb: \xff", "line 2: not UTF-8 text"),
    ],
)
def test_text_that_is_no_job_file_is_refused_with_its_line(text: str | bytes, message: str) -> None:
    with pytest.raises(BadYaml) as error:
        read_yaml(text)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_small_text_cannot_become_a_large_value() -> None:
    bomb = "a: &a [x, x]\n" + "\n".join(f"{n}: &{n} [*{p}, *{p}]" for p, n in zip("abcdefgh", "bcdefghi", strict=True))
    with pytest.raises(BadYaml, match="anchors and aliases"):
        read_yaml(bomb)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#" * (MAX_BYTES + 1), "at most 1048576"),
        ("[" * 500, "nested deeper than 32 levels"),
        ("{a: " * 500, "nested deeper than 32 levels"),
        ("- 1\n" * (MAX_VALUES + 1), f"more than {MAX_VALUES} values"),
        ("a: " + "9" * 5000, "not YAML"),
    ],
)
def test_size_depth_and_number_of_values_are_bounded(text: str, message: str) -> None:
    with pytest.raises(BadYaml, match=message):
        read_yaml(text)


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    assert read_yaml(b"\xef\xbb\xbfname: a") == {"name": "a"}
