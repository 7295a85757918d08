"""The input of `hfx infer`: words, lines and JSON lines with their places; a bad line affects no other."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest

from hfx.cli import reading
from hfx.cli.reading import Entry, json_lines, text_lines, words
from hfx.errors import UsageError


def test_words_are_numbered_where_there_are_several() -> None:
    assert list(words(["a"])) == [Entry("", "a")]
    assert [entry.place for entry in words(["a", "b"])] == ["Text 1", "Text 2"]


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"", []),
        (b"one\n\nfour\n", ["one", "", "four"]),
        (b"one\r\ntwo", ["one", "two"]),
        ("né\u2028x\u0085y\f\n".encode(), ["né\u2028x\u0085y\f"]),
    ],
)
def test_lines_end_at_newlines_only(data: bytes, texts: list[str]) -> None:
    assert [entry.content for entry in text_lines(BytesIO(data))] == texts


@pytest.mark.parametrize("length", [10, 11, 20, 21, 500])
def test_a_line_that_is_too_long_is_skipped_to_its_end(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfx.rows.text.MAX_BYTES", 10)
    first, second = text_lines(BytesIO(b"x" * length + b"\nnext"))
    assert second == Entry("Line 2", "next")
    assert isinstance(first.content, str) == (length <= 10)


def test_an_object_may_have_an_id() -> None:
    data = b'{"text_input": "a"}\n\n  \n{"text_input": "b", "id": [7]}\n{"id": "c", "text_input": "d"}'
    assert list(json_lines(BytesIO(data))) == [
        Entry("Line 1", {"text_input": "a"}),
        Entry("Line 4", {"text_input": "b"}, [7]),
        Entry("Line 5", {"text_input": "d"}, "c"),
    ]


@pytest.mark.parametrize(
    "line",
    [b"text", b"[1]", b"7", b'"text"', b'{"a": 1', b'{"a": NaN}', b'{"a": 1, "a": 2}', b'{"a": ' + b"[" * 100_000,
     b'{"a": ' + b"9" * 5000 + b"}", b'{"a": "\xff"}'],
    ids=range(10),
)  # fmt: skip
def test_a_line_that_is_no_object_says_so_in_its_place(line: bytes) -> None:
    first, second, third = json_lines(BytesIO(b'{"text_input": "a"}\n' + line + b'\n{"text_input": "b"}\n'))
    assert isinstance(first.content, dict) and isinstance(third.content, dict)
    assert isinstance(second.content, UsageError)
    assert second.place == "Line 2"
    assert len(second.content.message) < 400


@pytest.mark.parametrize("path", ["missing", "."])
def test_a_file_that_can_not_be_read_is_refused_by_name(path: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        reading.opened(tmp_path / path)
