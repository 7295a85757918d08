"""Requests at the limits: no text, invalid UTF-8, wrong tensors, settings out of range."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest

from hfx.errors import HfxError
from hfx.exporter.generation.folders import INPUTS
from hfx.python_backends.engine.generation_settings import ALIASES, BY_ALL_NAMES, SETTINGS
from hfx.python_backends.inputs import LONGEST_TEXT
from hfx.python_backends.serving.request import COUNTS
from hfx.triton import EmbeddedServer
from tests.rigs.checkpoints.reciting_generator import ENDLESS, POSITIONS, Recital
from tests.rigs.clients.generation_grpc import grpc_events, grpc_request, grpc_stub
from tests.rigs.clients.generation_http import post
from tests.rigs.clients.generation_requests import Ask, AskFailed
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import DOORS, RECITAL, all_free, in_process, metrics

pytestmark = pytest.mark.triton

INVALID = {400, "INVALID_ARGUMENT", ""}  # an error within a gRPC stream has no code
# What is out of range though its tensor can hold it; more: tests/unit/python_backends/test_generation_settings.py.
UNTAKEN: dict[str, Any] = {"INT32": -(2**31), "FP32": math.inf, "STRING": ""}
OUT_OF_RANGE: dict[str, Any] = {
    **{name: UNTAKEN[setting.dtype] for name, setting in BY_ALL_NAMES.items() if setting.dtype in UNTAKEN},
    "max_tokens": POSITIONS + 1,
    "max_new_tokens": POSITIONS + 1,
    "min_tokens": -(2**31),
    "num_beams": 2**31 - 1,
    "beam_width": 65,
    "temperature": -0.5,
    "top_k": -1,
    "top_p": math.inf,
    "min_p": 1.1,
    "repetition_penalty": 0.0,
    "no_repeat_ngram_size": -1,
    "length_penalty": -10.5,
    "early_stopping": "maybe",
    "long": "cut",
    "merge": "",
    "overlap": 17,
    "logprobs": 21,
    "stop_words": ["y" * 2**20],
    "stop": [""],
    "frequency_penalty": -2.5,
    "presence_penalty": 2.1,
    "logit_bias": ["5:101"],
    "source_lang": "fr_XX",  # of which the model has none
    "target_lang": "fr_XX",
    "timeout_ms": 0,
}
# Every value that a tensor of these can hold is in range, and num_return_sequences is no tensor.
FLAGS = {"do_sample", "add_special_tokens", "return_log_probs", "return_num_input_tokens", "return_num_output_tokens"}
ALL_IN_RANGE = {*FLAGS, "seed"}
NO_TENSOR = {"num_return_sequences"}
# What goes beside a value so that nothing but the value is wrong.
BESIDE: dict[str, dict[str, Any]] = {
    "length_penalty": {"num_beams": 2},
    "early_stopping": {"num_beams": 2},
    "overlap": {"long": "chunk"},
    "merge": {"long": "chunk"},
}
CASES = [
    *((name, {name: value, **BESIDE.get(name, {})}) for name, value in OUT_OF_RANGE.items()),
    ("top_p", {"top_p": 0.5, "num_beams": 2}),
    ("long", {"long": "chunk"}),
]
NO_TEXT = [b"\xff", b"abc\xf0\x9f", b"\xed\xa0\x80", b"a\x80b" * 1000]


@pytest.fixture(params=[RECITAL, f"{RECITAL}_stream"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sent(server: EmbeddedServer, request: Any) -> list[dict[str, Any]]:
    """Return the answer to a gRPC request. Raises AskFailed."""
    with grpc_stub(server) as stub:
        if request.model_name.endswith("_stream"):
            return list(grpc_events(stub.ModelStreamInfer(iter([request]), timeout=30)))
        try:
            stub.ModelInfer(request, timeout=30)
        except grpc.RpcError as error:
            raise AskFailed(error.code().name, error.details()) from None
    return [{}]


@pytest.fixture(autouse=True)
def goes_on(writing_server: EmbeddedServer, recital: Recital) -> Iterator[None]:
    """Check after each test that requests are answered as before."""
    yield
    for door in ("gRPC infer", "sse"):
        assert DOORS[door](writing_server, Ask(RECITAL, "a", {"max_tokens": 9})).text == recital.text("a", 9)


@pytest.mark.parametrize("raw", NO_TEXT, ids=lambda raw: repr(raw[:8]))
def test_strings_that_are_not_utf8_are_refused(raw: bytes, model: str, writing_server: EmbeddedServer) -> None:
    for fields in ({"text_input": raw}, {"text_input": "a", "stop_words": [raw]}, {"text_input": "a", "long": raw}):
        with pytest.raises(AskFailed, match="UTF-8") as refused:
            sent(writing_server, grpc_request(model, fields))
        assert refused.value.status in INVALID


@pytest.mark.parametrize("writer", ["stories", "summaries", "notes", RECITAL])
def test_an_empty_text_is_answered_as_in_process(writer: str, writing_server: EmbeddedServer, writers: Path) -> None:
    ask = Ask(writer, "", {"max_tokens": 12})
    try:
        expected = in_process(writers, [ask])[0]
    except HfxError:
        for door in DOORS.values():
            with pytest.raises(AskFailed) as refused:
                door(writing_server, ask)
            assert refused.value.status in INVALID
    else:
        assert [door(writing_server, ask) for door in DOORS.values()] == [expected] * len(DOORS)


@pytest.mark.parametrize("door", DOORS)
def test_a_text_above_the_limit_is_refused_before_it_is_read(door: str, writing_server: EmbeddedServer) -> None:
    for fields in ({}, {"long": "chunk"}):
        with pytest.raises(AskFailed, match=r"\[hfx:TOO_LONG\].*16777217 .*16777216") as refused:
            DOORS[door](writing_server, Ask("summaries", "a" * (LONGEST_TEXT + 1), fields))
        assert refused.value.status in INVALID


@pytest.mark.parametrize("milliseconds", [1, 300])
def test_a_deadline_ends_a_queued_or_running_request(milliseconds: int, writing_server: EmbeddedServer) -> None:
    before = metrics(writing_server, RECITAL)["hfx_deadline_exceeded_total"]
    for door in DOORS.values():
        with pytest.raises(AskFailed, match=r"\[hfx:DEADLINE_EXCEEDED\] the deadline passed") as ended:
            door(writing_server, Ask(RECITAL, "a", {**ENDLESS, "timeout_ms": milliseconds}))
        assert ended.value.status in {"CANCELLED", "", 400, 499, 200}
    wait_until(lambda: all_free(writing_server, RECITAL), "the slots are free", 5)
    wait_until(
        lambda: metrics(writing_server, RECITAL)["hfx_deadline_exceeded_total"] == before + len(DOORS),
        "the deadlines are counted",
        5,
    )


def test_a_request_without_text_is_refused(model: str, writing_server: EmbeddedServer) -> None:
    with pytest.raises(AskFailed, match=r"text_input|expected .* inputs") as refused:
        sent(writing_server, grpc_request(model, {"max_tokens": 5}))
    assert refused.value.status in INVALID


@pytest.mark.parametrize("door", ["HTTP infer", "gRPC infer", "/generate"])
def test_a_plain_call_that_asks_for_pieces_is_refused(door: str, writing_server: EmbeddedServer) -> None:
    with pytest.raises(AskFailed, match=r"stream is true.*NAME_stream"):
        DOORS[door](writing_server, Ask(RECITAL, "a", {"max_tokens": 9, "stream": True}))


def test_a_stream_goes_on_after_a_refused_request(writing_server: EmbeddedServer, recital: Recital) -> None:
    requests = [{"temperature": -1.0}, {"max_tokens": 9}]
    with grpc_stub(writing_server) as stub:
        sent = [grpc_request(f"{RECITAL}_stream", {"text_input": "a", **fields}) for fields in requests]
        refused, answer = islice(stub.ModelStreamInfer(iter(sent), timeout=30), 2)
    assert "temperature is -1.0" in refused.error_message
    assert answer.infer_response.raw_output_contents[0][4:].decode() == recital.text("a", 9)


def test_metrics_count_known_requests_exactly(writing_server: EmbeddedServer) -> None:
    known = {
        "hfx_generated_tokens_total": 60,
        "hfx_requests_completed_total": 3,
        "hfx_requests_refused_total": 1,
        "hfx_time_to_first_token_seconds_count": 3,
        "hfx_inter_token_seconds_count": 57,
    }
    ask = Ask(RECITAL, "a", {"max_tokens": 20})
    time.sleep(1.2)  # histograms are published every second, and include earlier tests' requests
    before = metrics(writing_server, RECITAL)
    for door in ("HTTP infer", "gRPC infer", "sse"):
        DOORS[door](writing_server, ask)
    with pytest.raises(AskFailed):
        DOORS["gRPC infer"](writing_server, Ask(RECITAL, "a", {"top_p": math.nan}))
    expected = {name: before[name] + more for name, more in known.items()}
    wait_until(lambda: expected.items() <= metrics(writing_server, RECITAL).items(), f"the metrics are {expected}", 5)
    after = metrics(writing_server, RECITAL)
    for name in ("hfx_time_to_first_token_seconds", "hfx_inter_token_seconds"):
        assert after[f"{name}_sum"] > before[f"{name}_sum"] and after[f"{name}_bucket"] > before[f"{name}_bucket"]
    assert all_free(writing_server, RECITAL)


def wrong_tensors() -> Iterator[tuple[str, str, list[int], bytes]]:
    """Yield name, datatype, shape and content of one tensor each."""
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
    tensor: tuple[str, str, list[int], bytes], model: str, writing_server: EmbeddedServer
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


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"text_input": 5}',
        b'{"text_input": ["a", "b"]}',
        b'{"text_input": "a", "top_k": "many"}',
        b'{"text_input": "\\ud800"}',
        b'{"text_input": "\xff"}',
    ],
)
def test_bodies_that_are_not_valid_requests_are_refused(
    body: bytes, model: str, writing_server: EmbeddedServer
) -> None:
    with pytest.raises(AskFailed) as refused:
        post(writing_server, f"{model}/generate", body, timeout=30)
    assert refused.value.status in (400, 500)


def test_the_tables_of_this_file_cover_every_field() -> None:
    tensors = {spec.name for spec in INPUTS} - {"text_input", "stream", "cancel_request"}
    tested = OUT_OF_RANGE.keys() | ALL_IN_RANGE
    assert tested == tensors
    assert tested - set(COUNTS.values()) | NO_TENSOR == {*SETTINGS, *ALIASES, "timeout_ms"}


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda each: str(each)[:40])
def test_a_setting_out_of_range_is_refused_by_name(
    name: str, settings: dict[str, Any], writing_server: EmbeddedServer
) -> None:
    in_json = not any(isinstance(value, float) and not math.isfinite(value) for value in settings.values())
    for door in DOORS if in_json else ("gRPC infer", "grpc stream"):
        with pytest.raises(AskFailed) as refused:
            DOORS[door](writing_server, Ask(RECITAL, "a", settings))
        assert refused.value.status in INVALID
        message = refused.value.message
        assert name in message or ALIASES.get(name, name) in message
        assert any(fix in message for fix in ("it must be", "leave", str(POSITIONS)))
