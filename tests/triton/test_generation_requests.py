"""Requests at the edge of what can be said: no text, empty text, bytes that are no text, tensors of other kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from hfx.errors import HfxError
from hfx.triton import EmbeddedServer
from tests.triton.generation_asks import Ask, AskFailed
from tests.triton.generation_grpc import grpc_events, grpc_request, grpc_stub
from tests.triton.generation_http import post
from tests.triton.generation_rig import DOORS, RECITAL, in_process, metrics, wait_until
from tests.triton.reciting import ENDLESS, Recital

pytestmark = pytest.mark.triton

INVALID = {400, "INVALID_ARGUMENT", ""}
NO_TEXT = [b"\xff", b"abc\xf0\x9f", b"\xed\xa0\x80", b"\xc0\x80", b"a\x80b" * 1000]


@pytest.fixture(params=[RECITAL, f"{RECITAL}_stream"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sent(server: EmbeddedServer, request: Any) -> list[dict[str, Any]]:
    """What a gRPC request is answered. Raises AskFailed."""
    with grpc_stub(server) as stub:
        if request.model_name.endswith("_stream"):
            return list(grpc_events(stub.ModelStreamInfer(iter([request]), timeout=30)))
        try:
            stub.ModelInfer(request, timeout=30)
        except grpc.RpcError as error:
            raise AskFailed(error.code().name, error.details()) from None
    return [{}]


def goes_on(server: EmbeddedServer, recital: Recital) -> None:
    for door in ("gRPC infer", "sse"):
        assert DOORS[door](server, Ask(RECITAL, "a", {"max_tokens": 9})).text == recital.text("a", 9)


@pytest.mark.parametrize("raw", NO_TEXT, ids=lambda raw: repr(raw[:8]))
def test_bytes_that_are_no_text_are_refused(
    raw: bytes, model: str, writing_server: EmbeddedServer, recital: Recital
) -> None:
    for fields in ({"text_input": raw}, {"text_input": "a", "stop_words": [raw]}, {"text_input": "a", "long": raw}):
        with pytest.raises(AskFailed, match="UTF-8") as refused:
            sent(writing_server, grpc_request(model, fields))
        assert refused.value.status in INVALID
    goes_on(writing_server, recital)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("asked", ["stories", "summaries", "notes", RECITAL])
def test_an_empty_text_is_answered_as_in_process(
    asked: str, door: str, writing_server: EmbeddedServer, writers: Path
) -> None:
    ask = Ask(asked, "", {"max_tokens": 12})
    try:
        wanted: Any = in_process(writers, [ask])[0]
    except HfxError:
        with pytest.raises(AskFailed) as refused:
            DOORS[door](writing_server, ask)
        assert refused.value.status in INVALID
    else:
        assert DOORS[door](writing_server, ask) == wanted


@pytest.mark.parametrize("door", DOORS)
def test_a_deadline_of_a_millisecond_ends_the_request(
    door: str, writing_server: EmbeddedServer, recital: Recital
) -> None:
    before = metrics(writing_server, RECITAL)["hfx_deadline_exceeded_total"]
    with pytest.raises(AskFailed, match=r"\[hfx:DEADLINE_EXCEEDED\] the deadline passed") as ended:
        DOORS[door](writing_server, Ask(RECITAL, "a", {**ENDLESS, "timeout_ms": 1}))
    assert ended.value.status in {"CANCELLED", "", 400, 499, 200}
    wait_until(
        lambda: metrics(writing_server, RECITAL)["hfx_deadline_exceeded_total"] == before + 1,
        "the deadline is counted",
        5,
    )
    goes_on(writing_server, recital)


@pytest.mark.parametrize("door", DOORS)
def test_a_deadline_ends_a_text_midway(door: str, writing_server: EmbeddedServer) -> None:
    with pytest.raises(AskFailed, match="the deadline passed"):
        DOORS[door](writing_server, Ask(RECITAL, "a", {**ENDLESS, "timeout_ms": 300}))
    wait_until(lambda: metrics(writing_server, RECITAL)["hfx_slots_used"] == 0, "its slot is free", 5)


def test_a_request_without_text_is_refused(model: str, writing_server: EmbeddedServer, recital: Recital) -> None:
    for fields in ({}, {"max_tokens": 5}):
        with pytest.raises(AskFailed, match=r"text_input|expected .* inputs") as refused:
            sent(writing_server, grpc_request(model, fields))
        assert refused.value.status in INVALID
    goes_on(writing_server, recital)


@pytest.mark.parametrize("door", ["HTTP infer", "gRPC infer", "/generate"])
def test_a_plain_call_that_asks_for_pieces_is_refused(
    door: str, writing_server: EmbeddedServer, recital: Recital
) -> None:
    for _ in range(3):
        with pytest.raises(AskFailed, match=r"stream is True.*NAME_stream gives pieces"):
            DOORS[door](writing_server, Ask(RECITAL, "a", {"max_tokens": 9, "stream": True}))
    goes_on(writing_server, recital)


def wrong_tensors() -> Iterator[tuple[str, str, list[int], bytes]]:
    """Name, datatype, shape and content of one tensor each."""
    text = b"\1\0\0\0a"
    yield "text_input", "INT32", [1, 1], b"\0\0\0\0"
    yield "text_input", "BYTES", [1, 2], text * 2
    yield "text_input", "BYTES", [2, 1], text * 2
    yield "text_input", "BYTES", [1], text
    yield "text_input", "BYTES", [1, 1, 1], text
    yield "text_input", "BYTES", [1, 0], b""
    yield "text_input", "BYTES", [0, 1], b""
    yield "text_input", "BYTES", [1, 1], b""
    yield "text_input", "BYTES", [1, 1], b"\xff\xff\xff\xffa"
    yield "max_tokens", "INT64", [1, 1], b"\5" + b"\0" * 7
    yield "max_tokens", "INT32", [1, 2], b"\5\0\0\0" * 2
    yield "max_tokens", "INT32", [1, 1], b"\5\0\0"
    yield "temperature", "FP64", [1, 1], b"\0" * 8
    yield "stop_words", "BYTES", [2, 1], text * 2
    yield "unheard_of", "INT32", [1, 1], b"\0\0\0\0"


@pytest.mark.parametrize("tensor", list(wrong_tensors()), ids=str)
def test_tensors_of_another_kind_or_shape_are_refused(
    tensor: tuple[str, str, list[int], bytes], model: str, writing_server: EmbeddedServer, recital: Recital
) -> None:
    name, datatype, shape, raw = tensor
    request = grpc_request(model, {} if name == "text_input" else {"text_input": "a", "max_tokens": 5})
    if name == "max_tokens":
        request = grpc_request(model, {"text_input": "a"})
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(raw)
    with pytest.raises(AskFailed) as refused:
        sent(writing_server, request)
    assert refused.value.status in INVALID
    assert refused.value.message
    goes_on(writing_server, recital)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b'{"text_input": 5}',
        b'{"text_input": ["a", "b"]}',
        b"{}",
        b'{"text_input": "a", "top_k": "many"}',
        b'{"text_input": "\\ud800"}',
        b'{"text_input": "\xff"}',
    ],
)
def test_bodies_that_are_no_request_are_refused(
    body: bytes, model: str, writing_server: EmbeddedServer, recital: Recital
) -> None:
    with pytest.raises(AskFailed) as refused:
        post(writing_server, f"{model}/generate", body, timeout=30)
    assert refused.value.status in (400, 500)
    goes_on(writing_server, recital)


def test_fields_that_nobody_knows_do_not_end_a_connection(writing_server: EmbeddedServer) -> None:
    body = json.dumps({"text_input": "a", "max_tokens": 3, "parameters": {"sampling": True}}).encode()
    answer = json.loads(post(writing_server, f"{RECITAL}/generate", body))
    assert answer["text_output"]
