"""A JSON schema allows no text that a JSON parser reads as a value that breaks the schema."""

from __future__ import annotations

import datetime
import json
import random
from functools import cache
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from hfx.python_backends.generation.dates import with_real_dates
from hfx.python_backends.generation.grammars import written

END = 256


@cache
def tokenizer() -> LLTokenizer:
    """Return a tokenizer with a token for each byte."""

    class Tokens:
        eos_token_id = END
        bos_token_id = None
        tokens = (*(bytes([byte]) for byte in range(END)), b"<end>")
        special_token_ids = (END,)

        def __call__(self, text: str) -> list[int]:
            return []

    return LLTokenizer(TokenizerWrapper(Tokens()), n_vocab=END + 1, eos_token=[END])


@cache
def compiled(schema: str) -> LLMatcher:
    """Return a matcher at the beginning of a text, to be copied."""
    matcher = LLMatcher(tokenizer(), written(("json_schema", schema), False), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def allows(schema: Any, text: str) -> bool:
    matcher, content = compiled(json.dumps(schema)).deep_copy(), list(text.encode())
    return (
        matcher.validate_tokens(content) == len(content) and matcher.consume_tokens(content) and matcher.is_accepting()
    )


NUMBER = {"type": "integer"}
OBJECTS = (
    {"properties": {"\u00e9": NUMBER}},
    {"properties": {"a": NUMBER}, "required": ["a"]},
    {"properties": {"a/b": NUMBER, "a": {"properties": {"a": NUMBER}}}},
    {"patternProperties": {"^a": NUMBER}},
    {"properties": {"a": NUMBER}, "additionalProperties": {"type": "string"}},
    {"items": {"properties": {"a": NUMBER}}},
)


def spelled(draw: random.Random, value: Any) -> str:
    """Return JSON with random escapes of characters, and with repeated keys."""
    if isinstance(value, str):
        escape = {"/": "\\/", "\n": "\\n"}
        return (
            '"'
            + "".join(f"\\u{ord(each):04x}" if draw.random() < 0.3 else escape.get(each, each) for each in value)
            + '"'
        )
    if isinstance(value, list):
        return "[" + ", ".join(spelled(draw, each) for each in value) + "]"
    return json.dumps(value)


@pytest.mark.parametrize("schema", OBJECTS)
def test_no_spelling_of_a_key_breaks_its_schema(schema: dict[str, Any]) -> None:
    draw, allowed = random.Random(5), 0
    for _ in range(1500):
        pairs = [
            (draw.choice(("a", "\u00e9", "a/b", "ab", "b")), draw.choice((1, "x", None)))
            for _ in range(draw.randint(1, 3))
        ]
        text = "{" + ", ".join(f"{spelled(draw, key)}: {spelled(draw, value)}" for key, value in pairs) + "}"
        text = f"[{text}]" if "items" in schema else text
        if allows(schema, text):
            allowed += 1
            jsonschema.validate(json.loads(text), schema)
    assert allowed


def test_the_escapes_that_texts_need_are_allowed() -> None:
    assert allows({"type": "string"}, json.dumps('\n\t\r\b\f"\\ \u00e9 \U0001f600', ensure_ascii=False))
    for text in ('"\\u0041"', '"\\/"', '"\\u00e9"'):
        assert not allows({"type": "string"}, text)


def test_dates_are_those_of_the_calendar() -> None:
    schema, draw = {"type": "string", "format": "date"}, random.Random(7)
    dates = [
        (year, month, day)
        for year in (0, 1, 4, 1900, 2000, 2023, 2024)
        for month in (2, 4, 13)
        for day in (0, 28, 29, 30, 31)
    ]
    for year, month, day in (
        *dates,
        *((draw.randint(0, 9999), draw.randint(0, 13), draw.randint(0, 32)) for _ in range(300)),
    ):
        text = f"{year:04}-{month:02}-{day:02}"
        try:
            is_date = bool(datetime.date(year, month, day))
        except ValueError:
            is_date = False
        assert allows(schema, json.dumps(text)) is is_date, text


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("date-time", "2024-02-29T23:59:59.5-01:00", True), ("date-time", "2023-02-29T00:00:00Z", False),
        ("date-time", "2024-01-01T24:00:00Z", False), ("time", "12:00:00+02:00", True), ("time", "23:59:60Z", False),
    ],
)  # fmt: skip
def test_times_are_those_of_a_clock(name: str, text: str, expected: bool) -> None:
    assert allows({"type": "string", "format": name}, json.dumps(text)) is expected


def test_a_format_stands_beside_other_keywords_and_is_read_in_schemas_alone() -> None:
    both = {"properties": {"format": NUMBER, "day": {"type": "string", "format": "date", "pattern": "^2"}}}
    assert allows(both, '{"format": 1, "day": "2024-02-29"}')
    assert not allows(both, '{"day": "1999-01-01"}')
    assert allows({"const": {"format": "date"}}, '{"format": "date"}')
    assert allows({"format": "date"}, "[7]")
    assert with_real_dates({"enum": [{"format": "date"}]}) == {"enum": [{"format": "date"}]}
