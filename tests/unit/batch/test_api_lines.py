"""Input files of the Batch API: errors name the line, and chunks never split a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hfx.batch.api.lines import CHUNK, MOST_ERRORS, Line, cut, is_endpoint, read_chunk
from tests.rigs.servers.batch_api import COMPLETIONS, EMBEDDINGS, begun, line, settings_of

GOOD = line(1, {"model": "m", "prompt": "a"})


def errors_of(content: bytes, tmp_path: Path, **settings: Any) -> list[tuple[str, int | None, str | None]]:
    (tmp_path / "in.jsonl").write_bytes(content)
    _, errors = cut(tmp_path / "in.jsonl", COMPLETIONS, settings_of(tmp_path, **settings))
    assert all(error["message"].endswith(".") for error in errors)
    return [(error["code"], error["line"], error["param"]) for error in errors]


def without(name: str) -> bytes:
    values = json.loads(GOOD)
    del values[name]
    return json.dumps(values).encode() + b"\n"


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (b'"text"', "invalid_json_line", None),
        (b"nonsense", "invalid_json_line", None),
        (b"\xff\xfe{}", "invalid_json_line", None),
        (b"\xef\xbb\xbf" + GOOD.strip(), "invalid_json_line", None),
        (b'{"a": NaN}', "invalid_json_line", None),
        (b'{"custom_id": "a", "custom_id": "b"}', "invalid_json_line", None),
        (b'{"body": ' + b"[" * 50_000, "invalid_json_line", None),
        (b'{"body": ' + b"[" * 60 + b"]" * 60 + b"}", "missing_required_parameter", "custom_id"),
        (b'{"n": ' + b"9" * 5000 + b"}", "invalid_json_line", None),
        *((without(name).strip(), "missing_required_parameter", name) for name in json.loads(GOOD)),
        (line(2, {}, custom_id=7).strip(), "invalid_custom_id", "custom_id"),
        (line(2, {}, custom_id="").strip(), "invalid_custom_id", "custom_id"),
        (line(2, {}, custom_id="x" * 513).strip(), "invalid_custom_id", "custom_id"),
        (line(2, {}, method="GET").strip(), "invalid_method", "method"),
        (line(2, {}, url=EMBEDDINGS).strip(), "mismatched_endpoint", "url"),
        (line(2, {}, url=["x"]).strip(), "mismatched_endpoint", "url"),
        (line(2, []).strip(), "invalid_request", "body"),
        (line(2, "text").strip(), "invalid_request", "body"),
        (line(2, {"stream": True}).strip(), "invalid_request", "body.stream"),
        (line(2, {}, priority=1).strip(), "unknown_parameter", "priority"),
        (GOOD.strip(), "duplicate_custom_id", "custom_id"),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else "",
)
def test_a_bad_line_is_named_and_the_lines_after_it_are_checked(
    bad: bytes, code: str, param: str | None, tmp_path: Path
) -> None:
    content = GOOD + b"\n \r\n" + bad + b"\n" + line(3, {}) + b"{\n"
    assert errors_of(content, tmp_path) == [(code, 4, param), ("invalid_json_line", 6, None)]


@pytest.mark.parametrize("content", [b"", b"\n", b" \r\n\n"])
def test_a_file_without_requests_is_an_error_of_the_file(content: bytes, tmp_path: Path) -> None:
    assert errors_of(content, tmp_path) == [("empty_file", None, None)]


def test_a_line_of_the_largest_size_is_taken_and_a_larger_one_is_not(tmp_path: Path) -> None:
    for end in (b"", b"\n", b"\r\n"):
        size = len(GOOD.strip())
        assert errors_of(GOOD.strip() + end, tmp_path, line=size) == []
        assert errors_of(GOOD.strip() + end, tmp_path, line=size - 1) == [("line_too_large", 1, None)]


def test_as_many_lines_as_may_be_are_taken_and_more_are_not(tmp_path: Path) -> None:
    content = b"".join(line(number, {}) for number in range(50))
    assert errors_of(content, tmp_path, lines=50) == []
    assert errors_of(content, tmp_path, lines=49) == [("too_many_requests", None, None)]


def test_the_number_of_reported_errors_is_bounded(tmp_path: Path) -> None:
    assert len(errors_of(b"x\n" * 10_000, tmp_path)) == MOST_ERRORS


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_chunks_have_each_line_once_whatever_stands_between_them(end: bytes, tmp_path: Path) -> None:
    ids = ["é", "\U0001f600", "\ud800", "a\nb", 'a"b', "\\", " ", *map(str, range(2 * CHUNK))]
    texts = [line(0, {"prompt": name}, custom_id=name).strip() for name in ids]
    blank = end + b"  " + end
    (tmp_path / "in.jsonl").write_bytes(blank + (blank + end).join(texts))
    settings = settings_of(tmp_path)
    chunks, errors = cut(tmp_path / "in.jsonl", COMPLETIONS, settings)
    lines = [each for chunk in chunks for each in read_chunk(tmp_path / "in.jsonl", chunk, COMPLETIONS)]
    assert errors == [] and [chunk.number for chunk in chunks] == [0, 1, 2]
    assert [each.custom_id for each in lines] == [each.body["prompt"] for each in lines] == ids
    assert [each.number for each in lines] == [3 + 3 * place for place in range(len(ids))]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", True),
        ("/v1/completions", True),
        ("/v1/embeddings", True),
        ("/models/a/v1/completions", True),
        ("/rerank", True),
        ("/models/a%20b/rerank", True),
        ("/v2/rerank", True),
        ("/predict", True),
        ("/v1/models", False),
        ("/v1/responses", True),
        ("/models/a/v1/moderations", True),
        ("/classify", True),
        ("/v1/batches", False),
        ("/generate", False),
        ("/models/a", False),
        ("/v2/models/a/infer", False),
        ("/v2/repository/index", False),
        ("/v1/completions?x=1", False),
        ("/models/../v1/completions", True),  # a model's name, of which there is none
        ("/models/a/b/rerank", False),
        ("/v1/completions\n", False),
        ("/rérank", False),
        ("", False),
    ],
)
def test_endpoints_are_the_routes_whose_answers_follow_from_their_requests(path: str, expected: bool) -> None:
    assert is_endpoint(path) == expected


@pytest.mark.parametrize(
    ("endpoint", "is_seeded"),
    [(COMPLETIONS, True), ("/models/a/v1/responses", True), ("/v1/chat/completions", True), ("/classify", False)],
)
def test_requests_that_may_sample_have_a_seed(endpoint: str, is_seeded: bool, tmp_path: Path) -> None:
    batch = begun(tmp_path, b"", endpoint)
    seeds = {Line(1, custom_id, {}).content(batch).get("seed") for custom_id in "aab"}
    assert len(seeds) == (2 if is_seeded else 1) and (None in seeds) != is_seeded
    assert Line(1, "a", {"seed": 5}).content(batch) == {"seed": 5}
