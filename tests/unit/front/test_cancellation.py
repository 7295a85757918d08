"""Requests that would cancel another caller's request, in each place where Triton reads a name."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hfx.front.guard import refuse_cancellation
from hfx.front.refusals import Refusal
from hfx.triton.front import Front
from tests.rigs.servers.front_rig import Seen, ask, fronted, post, upstream

ENGINE = "/v2/models/toy_stream"
TENSOR = {"name": "cancel_request", "datatype": "BYTES", "shape": [1, 1], "data": ["some-id"]}
NUMBER = {"name": "seed", "datatype": "INT64", "shape": [1, 1], "data": [1]}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Front, Seen]]:
    with upstream() as (port, seen), fronted(port) as front:
        yield front, seen


@pytest.mark.parametrize(
    "body",
    [
        b'{"text_input": "", "cancel_request": "some-id"}',
        b'{"text_input": "", "cancel_request" \n: "some-id"}',
        b'{"text_input": "", "parameters": {"cancel_request": "some-id"}}',
        b'{"text_input": "", "\\u0063ancel\\u005Frequest": "some-id"}',
        b'{"text_input": "", "cancel_request\\u0000x": "some-id"}',
        b'{"text_input": "a\\"\\u00e9", "cancel_request\\u0000\\"": "some-id", "\\u0061": 1}',
        b'{"inputs": [{"n\\u0061me": "cancel_request", "datatype": "BYTES"}]}',
    ],
)
def test_a_cancellation_is_refused_in_every_spelling(body: bytes) -> None:
    with pytest.raises(Refusal, match="cancel_request is closed"):
        refuse_cancellation(body)


@pytest.mark.parametrize(
    "fields",
    [
        {"text_input": "cancel_request"},
        {"text_input": '"cancel_request": 1', "cancel_requests": 2},
        {"inputs": [{"name": "TEXT", "data": ["cancel_request"]}]},
    ],
)
def test_a_text_may_contain_the_words_cancel_request(fields: dict[str, object]) -> None:
    refuse_cancellation(json.dumps(fields).encode())
    refuse_cancellation(json.dumps(fields).replace("TEXT", "\\u0054EXT").encode())


def test_no_infer_or_generate_request_can_cancel_another_callers(served: tuple[Front, Seen]) -> None:
    front, seen = served
    content = b"\x07\0\0\0some-id"
    head = TENSOR | {"parameters": {"binary_data_size": len(content)}}
    binary = json.dumps({"inputs": [{key: value for key, value in head.items() if key != "data"}]}).encode()
    requests = [
        post(json.dumps({"text_input": "", "cancel_request": "some-id"}).encode(), f"{ENGINE}/generate"),
        post(json.dumps({"text_input": "", "cancel_request": "some-id"}).encode(), f"{ENGINE}/generate_stream"),
        post(json.dumps({"inputs": [TENSOR]}).encode(), f"{ENGINE}/infer"),
        post(json.dumps({"inputs": [NUMBER], "parameters": {"cancel_request": "some-id"}}).encode(), f"{ENGINE}/infer"),
        post(binary + content, f"{ENGINE}/infer", Inference_Header_Content_Length=str(len(binary))),
    ]
    answers = [ask(front, request) for request in requests]
    assert [(status, b"cancel_request is closed" in body) for status, _, body in answers] == [(400, True)] * 5
    assert seen.requests == []
