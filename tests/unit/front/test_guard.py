"""The front refuses hostile requests with an HTTP status, from the exact limit on, and passes no part of them on."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfx.front.fields import refuse_unknown
from hfx.front.guard import BLOCK_BYTES, FEW_MARKS, JSON_DEPTH, JSON_MARKS, MARK_BYTES, check_json, json_length
from hfx.front.refusals import Refusal
from hfx.front.settings import Limits
from hfx.triton.front import Front
from tests.rigs.servers.front_rig import (
    GENERATE,
    INFER,
    Seen,
    ask,
    connect,
    fronted,
    post,
    upstream,
)

BODY = 1 << 20
BODIES = st.recursive(
    st.none() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def is_cut_while_sending(connection: socket.socket, data: bytes) -> bool:
    for _ in range(20_000):
        try:
            connection.sendall(data)
        except ConnectionError:
            return True
    return False


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Front, Seen]]:
    with upstream() as (port, seen), fronted(port, Limits(body=BODY)) as front:
        yield front, seen


@pytest.fixture
def front(served: tuple[Front, Seen]) -> Front:
    return served[0]


@pytest.fixture
def seen(served: tuple[Front, Seen]) -> Seen:
    served[1].requests.clear()
    return served[1]


# The JSON of a body


@pytest.mark.parametrize(
    "text", [nested(JSON_DEPTH), b"[]" * 500, json.dumps("[" * 500).encode(), b'"\\\\"' + b"[]" * 99]
)
def test_json_is_taken_to_its_depth_and_brackets_in_texts_do_not_count(text: bytes) -> None:
    check_json(text)


@pytest.mark.parametrize(
    "text",
    [
        nested(JSON_DEPTH + 1),
        b"[" * 3_000_000,
        b'{"a":' * 100 + b"1" + b"}" * 100,
        b"[]" * 90_000 + nested(JSON_DEPTH + 1),
        b'"\\"' + b"[" * 65 + b'"' + nested(65),
        b'"\\\\"' + nested(65),
        b"[]" * 99 + b"]",
        b"[]" * 99 + b"[",
        b"[]" * 99 + b'"',
        b"][" * 99,
        b'"' + b"[" * 99 + b"\\",
        b"[" + b"0," * 2000 + nested(JSON_DEPTH) + b"]",
        b'["\xff"]',
    ],
)
def test_json_that_is_too_deep_or_unclosed_is_refused(text: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        check_json(text)
    assert caught.value.status == 400


@pytest.mark.parametrize("text", [b"[" + b"0," * JSON_MARKS + b"0]", b"{" + b'"":0,' * JSON_MARKS + b'"":0}'])
def test_json_of_too_many_values_is_refused_unparsed_and_in_a_text_they_do_not_count(text: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        check_json(text)
    assert caught.value.status == 413
    quoted = json.dumps(text.decode()).encode()
    assert check_json(quoted) == len(quoted)


def test_the_memory_that_json_takes_is_counted_with_its_values_and_wide_characters() -> None:
    assert check_json(b"{}") == 2
    assert check_json('{"é": 1}'.encode()) == 4 * 9
    few, many = (b"[" + b"0," * (marks - 2) + b"{}]" for marks in (FEW_MARKS, FEW_MARKS + 1))
    assert check_json(few) == len(few)
    assert check_json(many) == len(many) + (FEW_MARKS + 1) * MARK_BYTES
    deep = b"[" + b"0," * (FEW_MARKS * 2) + nested(JSON_DEPTH - 1) + b"]"
    assert check_json(deep) == len(deep) + (FEW_MARKS * 2 + JSON_DEPTH) * MARK_BYTES
    text = json.dumps({"text": "[,:" * BLOCK_BYTES}).encode()
    assert check_json(text) == len(text) + 2 * MARK_BYTES
    plain = json.dumps({"text": "x" * 3 * BLOCK_BYTES}).encode()
    assert check_json(plain) == len(plain) + 2 * MARK_BYTES
    most = b"[" + b"0," * (JSON_MARKS - 1) + b"0]"
    assert check_json(most) == len(most) + JSON_MARKS * MARK_BYTES


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_json_that_is_not_utf_8_hides_no_values(encoding: str, front: Front) -> None:
    body = json.dumps({"model": "\u2222", "messages": [[]] * 100, "x": "\u2222"}, ensure_ascii=False).encode(encoding)
    status, _, answer = ask(front, post(body, "/v1/chat/completions"))
    assert (status, "is not JSON" in json.loads(answer)["error"]["message"]) == (400, True)


@pytest.mark.parametrize("length", range(BLOCK_BYTES - 5, BLOCK_BYTES + 1))
def test_escapes_at_the_border_of_a_block_are_read_as_a_parser_reads_them(length: int) -> None:
    for end in ('"', "\\", '\\"', "\\\\", '\\\\"'):
        quoted = json.dumps("x" * length + end).encode()
        assert check_json(b"[" + quoted + b"," + json.dumps("[{" * 100).encode() + b"]") > 0
        with pytest.raises(Refusal):
            check_json(b"[" + quoted + b"," + nested(JSON_DEPTH) + b"]")


@settings(deadline=None)
@given(BODIES, st.integers(0, JSON_DEPTH + 5), st.integers(0, 80))
def test_the_measured_depth_of_json_equals_that_of_a_parser(value: Any, levels: int, padding: int) -> None:
    def depth(part: Any) -> int:
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    for _ in range(levels):
        value = [value]
    text = json.dumps([value, *([[]] * padding)]).encode()
    if depth(json.loads(text)) <= JSON_DEPTH:
        check_json(text)
    else:
        with pytest.raises(Refusal):
            check_json(text)


def test_only_the_head_of_a_binary_request_is_checked_as_json() -> None:
    head = b'{"inputs":[]}'
    body = head + b"[" * 1000
    assert json_length(b"%d" % len(head), body) == len(head)
    assert json_length(b"0", body) == 0
    assert json_length(b"%d" % len(body), body) == len(body)


@pytest.mark.parametrize("length", [b"99", b"-1", b"+5", b" 5", b"5,5", b"0x5", b"", b"99999999999999999999"])
def test_an_invalid_inference_header_length_is_refused(length: bytes) -> None:
    with pytest.raises(Refusal):
        json_length(length, b'{"a":1}')


def test_of_a_field_with_a_name_of_megabytes_no_more_than_its_beginning_is_kept() -> None:
    with pytest.raises(Refusal) as caught:
        refuse_unknown({"y" * 500_000: 1}, {"x"})
    assert len(caught.value.param) + len(caught.value.message) < 300


# Bodies


def test_a_request_is_framed_anew_and_goes_on_without_foreign_headers(front: Front, seen: Seen) -> None:
    body = b'{"inputs": []}'
    status, headers, _ = ask(front, post(body, X_Secret="1", Cookie="a", Accept_Encoding="gzip", Content_Type="text/x"))
    assert status == 200 and headers["x-request-id"]
    [(path, passed, content)] = seen.requests
    assert (path, content) == (GENERATE, body)
    assert passed == {"host": "triton", "content-length": str(len(body)), "accept-encoding": "gzip"}


@pytest.mark.parametrize(("encode", "name"), [(gzip.compress, "gzip"), (zlib.compress, "deflate"), (bytes, "identity")])
def test_a_compressed_body_is_passed_on_plain(front: Front, seen: Seen, encode: Any, name: str) -> None:
    body = json.dumps({"text_input": "x" * 1000}).encode()
    assert ask(front, post(encode(body), Content_Encoding=name))[0] == 200
    assert seen.requests[0][2] == body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (post(gzip.compress(b" " * 100 * BODY), Content_Encoding="gzip"), 413),
        (post(gzip.compress(b" " * (BODY + 1)), Content_Encoding="gzip"), 413),
        (post(gzip.compress(gzip.compress(b" " * BODY)), Content_Encoding="gzip, gzip"), 415),
        (post(b"{}", Content_Encoding="br"), 415),
        (post(b"{}", Content_Encoding="gzip"), 400),
        (post(gzip.compress(b"{}")[:-4], Content_Encoding="gzip"), 400),
        (post(gzip.compress(b"{}") + b"[", Content_Encoding="gzip"), 400),
        (post(b" " * (BODY + 1)), 413),
        (post(b'{"text_input": "a", "id": "\xff"}'), 400),
        (post(nested(100)), 400),
        (post(nested(100), Inference_Header_Content_Length="2"), 400),
        (post(nested(100), INFER, Inference_Header_Content_Length="200"), 400),
        (post(b"{}", INFER, Inference_Header_Content_Length="3"), 400),
    ],
)
def test_a_body_out_of_bounds_is_refused(front: Front, seen: Seen, request_bytes: bytes, status: int) -> None:
    got, _, body = ask(front, request_bytes)
    assert got == status
    assert json.loads(body)["error"].endswith(".")
    assert seen.requests == []


def test_the_size_limit_of_a_body_is_exact_also_for_chunked_bodies(front: Front, seen: Seen) -> None:
    chunked = b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % GENERATE.encode()
    chunk = b"%x\r\n%b\r\n" % (BODY // 4, b" " * (BODY // 4))
    assert ask(front, post(b" " * BODY))[0] == 200
    assert ask(front, chunked + 4 * chunk + b"0\r\n\r\n")[0] == 200
    assert [len(body) for _, _, body in seen.requests] == [BODY, BODY]
    assert ask(front, chunked + 4 * chunk + b"1\r\n \r\n0\r\n\r\n")[0] == 413


def test_a_large_length_is_refused_before_the_body_comes(front: Front) -> None:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n" % GENERATE.encode()
    assert ask(front, head)[0] == 413


# Heads


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 2", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 2"],
        ["Upgrade: h2c", "Connection: Upgrade", "Content-Length: 2", "Transfer-Encoding: chunked"],
        ["Upgrade: h2c", "Connection: Upgrade", "Content-Length: 2", "Content-Length: 3"],
        ["Upgrade: h2c", "Connection: Upgrade", "Transfer-Encoding: gzip, chunked"],
        ["Upgrade: h2c", "Connection: Upgrade", "Transfer-Encoding:", "X-Y: chunked", "Content-Length: 2"],
        ["Content-Length: 2", "Content-Length: 3"],
        ["Content-Length: 2, 2"],
        ["Content-Length: +2"],
        ["Content-Length: 2", "Transfer-Encoding : chunked"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding: xchunked"],
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding: gzip", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Content-Length: 2", "X-Folded: a\r\n b"],
        ["Content-Length: 2", "X-Line: a\nTransfer-Encoding: chunked"],
        ["Content-Length: 2", "X-Null: a\0b"],
        ["Content-Length: 2", "Inference-Header-Content-Length: 2", "Inference-Header-Content-Length: 9"],
        ["Content-Length: 2", "Content-Encoding: identity", "Content-Encoding: gzip"],
        ["Content-Length: 2", "Authorization: a", "Authorization: b"],
    ],
)
def test_ambiguous_message_framing_is_refused(front: Front, seen: Seen, lines: list[str]) -> None:
    head = "\r\n".join([f"POST {GENERATE} HTTP/1.1", "Host: localhost", *lines])
    status, _, _ = ask(front, head.encode() + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
    assert status == 400
    assert seen.requests == []


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (post(b"{}", **{f"h{index}": "x" for index in range(200)}), 431),
        (post(b"{}", h="x" * 300_000), 431),
        (post(b"{}", "/v2/" + "x" * 20_000), 414),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (post(b"{}", "/v2/models/\xff/infer"), 400),
    ],
)
def test_an_oversized_or_invalid_request_head_is_refused(
    front: Front, seen: Seen, request_bytes: bytes, status: int
) -> None:
    assert ask(front, request_bytes)[0] == status
    assert seen.requests == []


def test_a_header_without_end_is_refused(front: Front) -> None:
    with connect(front) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nX: ")
        assert is_cut_while_sending(connection, b"x" * 10_000)


def test_chunks_of_nothing_but_extensions_are_refused(front: Front) -> None:
    with connect(front) as connection:
        connection.sendall(
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % GENERATE.encode()
        )
        assert is_cut_while_sending(connection, b"1;" + b"x" * 10_000 + b"\r\n \r\n")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health/", 200),
        ("GET", "/v2/", 200),
        ("GET", "/v2/models/toy/versions/1/config/", 200),
        ("GET", "/openapi.json/", 200),
        ("GET", "/v2/models/", 404),
        ("GET", "/health//", 404),
        ("GET", "/v2/logging/", 403),
        ("POST", "/v2/repository/models/toy/unload/", 403),
        ("GET", "/embed", 405),  # a dialect takes POST there
        ("GET", "/v2/models/toy/infer", 405),
        ("DELETE", "/v2/health/live", 405),
        ("GET", "/v2/models/a%2fb/ready", 404),
        ("GET", "/v2/models/../logging", 404),
        ("GET", "/v2/logging", 403),
        ("POST", "/v2/logging", 403),
        ("POST", "/v2/repository/models/toy/unload", 403),
        ("POST", "/v2/systemsharedmemory/region/x/register", 403),
        ("GET", "/v2/cudasharedmemory/status", 403),
        ("GET", "/v2/trace/setting", 403),
        ("POST", "/v2/models/toy/trace/setting", 403),
        ("GET", "/health", 200),
        ("GET", "/v2", 200),
        ("GET", "/v2/models/toy/versions/1/config", 200),
        ("GET", "http://elsewhere/v2/models/stats", 200),
    ],
)
def test_only_the_open_paths_of_v2_are_passed_on(front: Front, method: str, path: str, status: int) -> None:
    assert ask(front, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())[0] == status


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", "/v1"),
        ("/responses", "/v1"),
        ("/x", "/openapi.json"),
    ],
)
def test_an_unknown_path_gets_the_one_that_was_meant(front: Front, path: str, hint: str) -> None:
    status, *_, body = ask(front, f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
    assert status == 404 and hint.encode() in body


# Pipelines
