"""Settings as Triton's request parameters, through every interface: honoured or refused by name, never ignored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import pytest

from hfx.triton import EmbeddedServer
from tests.rigs.checkpoints.reciting_generator import Recital
from tests.rigs.clients.generation_grpc import grpc_events, grpc_request, grpc_stub
from tests.rigs.clients.generation_http import post
from tests.rigs.clients.generation_requests import Ask, AskFailed, Event
from tests.rigs.servers.generation_server import DOORS, RECITAL

pytestmark = pytest.mark.triton

Parameters = Mapping[str, Any]
TEXT: dict[str, Any] = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
TOKENS, STOP = 120, slice(12, 15)  # characters that stop a text
TRITONS: dict[str, Any] = {
    "priority": 0, "timeout": 10_000_000, "sequence_id": 7, "sequence_start": True, "sequence_end": True,
}  # fmt: skip


def infer(server: EmbeddedServer, model: str, parameters: Parameters) -> list[Event]:
    body = {"inputs": [TEXT], "parameters": {**parameters, "binary_data_output": False}}
    answer = json.loads(post(server, f"{model}/infer", json.dumps(body).encode()))
    return [{output["name"]: output["data"][0] for output in answer["outputs"] if output["data"]}]


def generate(server: EmbeddedServer, model: str, fields: Parameters) -> list[Event]:
    body = {"text_input": "a", **fields}
    answer = json.loads(post(server, f"{model}/generate", json.dumps(body).encode()))
    if "error" in answer:
        raise AskFailed(200, answer["error"])
    return [answer]


def generate_stream(server: EmbeddedServer, model: str, parameters: Parameters) -> list[Event]:
    body = {"text_input": "a", "stream": True, "parameters": {"id": "one", **parameters}}
    lines = post(server, f"{model}_stream/generate_stream", json.dumps(body).encode()).splitlines()
    return [json.loads(line.removeprefix(b"data: ")) for line in lines if line]


def grpc_of(model: str, parameters: Parameters) -> Any:
    request = grpc_request(model, {"text_input": "a"})
    for name, value in parameters.items():
        kind = {bool: "bool", int: "int64", float: "double", str: "string"}[type(value)]
        setattr(request.parameters[name], f"{kind}_param", value)
    return request


def grpc_infer(server: EmbeddedServer, model: str, parameters: Parameters) -> list[Event]:
    with grpc_stub(server) as stub:
        try:
            answer = stub.ModelInfer(grpc_of(model, parameters), timeout=30)
        except grpc.RpcError as error:
            raise AskFailed(error.code().name, error.details()) from None
    texts = [
        raw
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
        if output.name == "text_output"
    ]
    return [{"text_output": raw[4:].decode()} for raw in texts]


def grpc_stream(server: EmbeddedServer, model: str, parameters: Parameters) -> list[Event]:
    request = grpc_of(f"{model}_stream", {"triton_enable_empty_final_response": True, **parameters})
    with grpc_stub(server) as stub:
        return list(grpc_events(stub.ModelStreamInfer(iter([request]), timeout=30)))


WAYS: dict[str, Callable[[EmbeddedServer, str, Parameters], list[Event]]] = {
    "infer": infer,
    "generate": generate,
    "generate, parameters": lambda server, model, fields: generate(server, model, {"parameters": fields}),
    "generate_stream": generate_stream,
    "gRPC infer": grpc_infer,
    "gRPC stream": grpc_stream,
}
way = pytest.mark.parametrize("way", WAYS)


def text(events: list[Event]) -> str:
    return "".join(event["text_output"] for event in events)


@way
def test_request_parameters_set_generation_settings(way: str, writing_server: EmbeddedServer, recital: Recital) -> None:
    for parameters in ({"max_tokens": 5}, {"max_new_tokens": 5}, {"max_tokens": 5, "top_p": 1, "top_k": 1}):
        assert text(WAYS[way](writing_server, RECITAL, parameters)) == recital.text("a", 5)
    whole = recital.text("a", TOKENS)
    for name in ("stop", "stop_words"):
        stopped = WAYS[way](writing_server, RECITAL, {"max_tokens": TOKENS, name: whole[STOP]})
        assert text(stopped) == whole[: whole.index(whole[STOP])]


@way
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_token": 5}, "There is no field max_token; did you mean max_tokens"),
        ({"top": 0.5}, "did you mean top_k"),
        ({"colour": "red"}, "There is no field colour; fields are max_tokens"),
        ({"presence_penalty": 2.5}, "presence_penalty is 2.5; it must be a number from -2 to 2"),
    ],
)
def test_a_parameter_that_is_no_setting_is_refused(
    way: str, parameters: Parameters, message: str, writing_server: EmbeddedServer
) -> None:
    with pytest.raises(AskFailed, match=message) as refused:
        WAYS[way](writing_server, RECITAL, parameters)
    assert refused.value.status in {400, "INVALID_ARGUMENT", ""}  # an error within a gRPC stream has no code


@way
def test_tritons_own_parameters_are_accepted(way: str, writing_server: EmbeddedServer, recital: Recital) -> None:
    own = {name: value for name, value in TRITONS.items() if way != "gRPC infer" or not name.startswith("sequence")}
    assert text(WAYS[way](writing_server, RECITAL, {"max_tokens": 5, **own})) == recital.text("a", 5)


@pytest.mark.parametrize("door", DOORS)
def test_settings_may_be_sent_under_the_names_of_other_servers(
    door: str, writing_server: EmbeddedServer, recital: Recital
) -> None:
    whole = recital.text("a", TOKENS)
    asked = {"max_new_tokens": TOKENS, "stop": ["never said", whole[STOP]], "presence_penalty": 0.0}
    answer = DOORS[door](writing_server, Ask(RECITAL, "a", asked))
    assert (answer.text, answer.finish_reason) == (whole[: whole.index(whole[STOP])], "stop")


# Encoders, whose steps all get the parameters of a request


def labels(events: list[Event]) -> list[Any]:
    return [event["label"] for event in events]


def test_a_parameter_of_an_encoder_is_its_tensor(writing_server: EmbeddedServer) -> None:
    body = {"inputs": [TEXT], "parameters": {"top_k": 2}}
    answer = json.loads(post(writing_server, "sentiment/infer", json.dumps(body).encode()))
    assert [output["shape"] for output in answer["outputs"] if output["name"] == "label"] == [[1, 2]]
    assert len(generate(writing_server, "sentiment", {"top_k": 2})[0]["label"]) == 2


@pytest.mark.parametrize("way", ["infer", "generate", "generate, parameters", "gRPC infer"])
def test_a_parameter_that_an_encoder_lacks_is_refused(way: str, writing_server: EmbeddedServer) -> None:
    with pytest.raises(AskFailed, match=r"topk .* top_k") as refused:
        WAYS[way](writing_server, "sentiment", {"topk": 2})
    assert refused.value.status in {400, "INVALID_ARGUMENT"}
    own = {} if way == "gRPC infer" else {name: value for name, value in TRITONS.items() if "sequence" not in name}
    WAYS[way](writing_server, "sentiment", own)


def test_parameters_that_contradict_their_tensors_are_refused(writing_server: EmbeddedServer) -> None:
    for model, name, first, second in ((RECITAL, "max_tokens", 5, 6), ("sentiment", "top_k", 1, 2)):
        tensor = {"name": name, "datatype": "INT32", "shape": [1, 1], "data": [first]}
        body = {"inputs": [TEXT, tensor], "parameters": {name: second}}
        with pytest.raises(AskFailed, match=f"{name} is {second}.* tensor"):
            post(writing_server, f"{model}/infer", json.dumps(body).encode())


def test_an_encoders_top_k_has_a_lower_bound_only(writing_server: EmbeddedServer) -> None:
    tensor = {"name": "top_k", "datatype": "INT32", "shape": [1, 1], "data": [0]}
    for body in ({"inputs": [TEXT, tensor]}, {"inputs": [TEXT], "parameters": {"top_k": -1}}):
        with pytest.raises(AskFailed, match=r"top_k .* not (0|-1)"):
            post(writing_server, "sentiment/infer", json.dumps(body).encode())
    body = {"inputs": [TEXT], "parameters": {"top_k": 2**40}}
    answer = json.loads(post(writing_server, "sentiment/infer", json.dumps(body).encode()))
    assert [output["shape"] for output in answer["outputs"] if output["name"] == "label"] == [[1, 3]]
