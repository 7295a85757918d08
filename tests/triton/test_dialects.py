"""All dialects of `hfx serve` together: equal answers, keys, freed slots, and a correct API description."""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

import jsonschema
import pytest

from hfx.client import Client
from tests.rigs.checkpoints.reciting_generator import ENDLESS
from tests.rigs.clients.dialect_calls import API_KEY, BOUNDED_KEY, PROMPT, RANKER, TALKER, TIGHT_KEYS, call
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import RECITAL
from tests.rigs.servers.serve_process import SECONDS, ServeProcess

pytestmark = pytest.mark.triton
SOON = 20.0  # far shorter than ENDLESS takes
TEXT = "The garden was lovely, but Anna went to Oslo by train."
SAMPLED = {"max_new_tokens": 12, "temperature": 0.9, "seed": 11, "stop": ["zebra"]}


def answer_of(server: ServeProcess, path: str, body: Any) -> Any:
    status, _, answer = call(server, path, body)
    assert status == 200, answer
    return answer


def mlserver(server: ServeProcess, model: str, text: str, **parameters: Any) -> Any:
    body = {"inputs": [{"name": "args", "shape": [1], "datatype": "BYTES", "data": [text]}], "parameters": parameters}
    return json.loads(answer_of(server, f"/v2/models/{model}/infer", body)["outputs"][0]["data"][0])


def v2(server: ServeProcess, model: str, text: str) -> dict[str, Any]:
    inputs = [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]
    answer = answer_of(server, f"/v2/models/{model}/infer", {"inputs": inputs})
    return {output["name"]: output["data"] for output in answer["outputs"]}


Ask = Callable[[ServeProcess], Any]
TEXTS: dict[str, Ask] = {
    "openai": lambda s: answer_of(s, "/v1/completions", {"model": "stories", "prompt": PROMPT, **SAMPLED})["choices"][
        0
    ]["text"],
    "huggingface": lambda s: answer_of(s, "/models/stories", {"inputs": PROMPT, "parameters": SAMPLED})[0][
        "generated_text"
    ],
    "mlserver": lambda s: mlserver(s, "stories", PROMPT, return_full_text=False, **SAMPLED)["generated_text"],
    "v2": lambda s: answer_of(s, "/v2/models/stories/generate", {"text_input": PROMPT, **SAMPLED})["text_output"],
}
LABELS: dict[str, Ask] = {
    "huggingface": lambda s: answer_of(s, "/models/sentiment-fp32", {"inputs": TEXT})[0][0],
    "text-embeddings-inference": lambda s: answer_of(s, "/predict", {"inputs": TEXT})[0],
    "mlserver": lambda s: mlserver(s, "sentiment-fp32", TEXT),
    "vllm": lambda s: next(
        {"label": label, "score": score}
        for label, score in answer_of(s, "/classify", {"input": TEXT})["labels"].items()
    ),
    "v2": lambda s: {
        name: values[0] for name, values in v2(s, "sentiment-fp32", TEXT).items() if name in ("label", "score")
    },
}
VECTORS: dict[str, Ask] = {
    "openai": lambda s: answer_of(s, "/v1/embeddings", {"model": "similar-int8", "input": TEXT})["data"][0][
        "embedding"
    ],
    "huggingface": lambda s: answer_of(s, "/models/similar-int8", {"inputs": TEXT}),
    "text-embeddings-inference": lambda s: answer_of(s, "/embed", {"inputs": TEXT})[0],
    "mlserver": lambda s: mlserver(s, "similar-int8", TEXT),
}


@pytest.mark.parametrize("dialect", TEXTS)
def test_every_dialect_gives_the_same_generated_text(dialect: str, dialects: ServeProcess, grpc: Client) -> None:
    assert TEXTS[dialect](dialects) == grpc.generate("stories", PROMPT, **SAMPLED).text  # type: ignore[call-overload]


@pytest.mark.parametrize("dialect", LABELS)
def test_every_dialect_gives_the_same_label_and_score(dialect: str, dialects: ServeProcess, grpc: Client) -> None:
    expected = grpc.classify("sentiment-fp32", TEXT)
    answer = LABELS[dialect](dialects)
    assert (answer["label"], answer["score"]) == (expected.label, pytest.approx(expected.score, rel=1e-7))  # V2's JSON


@pytest.mark.parametrize("dialect", VECTORS)
def test_every_dialect_gives_the_same_vector(dialect: str, dialects: ServeProcess, grpc: Client) -> None:
    assert VECTORS[dialect](dialects) == grpc.embed("similar-int8", TEXT).tolist()


def slots_used(server: ServeProcess) -> int:
    return gauge(server, "hfx_slots_used")


def gauge(server: ServeProcess, name: str) -> int:
    """Return a metric of RECITAL's engine."""
    with urllib.request.urlopen(server.ready["metrics_url"], timeout=SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    [line] = [line for line in lines if line.startswith(name) and f'model="{RECITAL}"' in line]
    return int(float(line.rsplit(" ", 1)[1]))


COMPLETION = {"model": RECITAL, "prompt": "a", "n": 2, "seed": 1, **ENDLESS}
GENERATION = {"inputs": "a", "parameters": ENDLESS}
NAMED = {"max_output_tokens" if name == "max_tokens" else name: value for name, value in ENDLESS.items()}
RESPONSE = {"model": RECITAL, "input": "a", **NAMED}
PIPELINE = {
    "inputs": [{"name": "args", "shape": [1], "datatype": "BYTES", "data": ["a"]}],
    "parameters": ENDLESS,
}


@pytest.mark.parametrize(
    ("path", "body", "streams"),
    [
        ("/v1/completions", COMPLETION, True),
        ("/v1/completions", COMPLETION, False),
        ("/v1/responses", RESPONSE, True),
        ("/v1/responses", RESPONSE, False),
        (f"/models/{RECITAL}", GENERATION, True),
        (f"/models/{RECITAL}", GENERATION, False),
        (f"/v2/models/{RECITAL}/infer", PIPELINE, False),
    ],
)
def test_a_client_that_leaves_frees_its_slots(path: str, body: Any, streams: bool, dialects: ServeProcess) -> None:
    connection = http.client.HTTPConnection(dialects.http_url.rpartition("/")[2], timeout=SECONDS)
    sent = {**body, "stream": True} if streams else body
    connection.request("POST", path, json.dumps(sent), {"Authorization": f"Bearer {API_KEY}"})
    if streams:
        assert connection.getresponse().readline().startswith((b"data: {", b"event: response"))
    wait_until(lambda: slots_used(dialects) >= (body.get("n") or 1), "its requests run", SECONDS)
    connection.close()
    wait_until(lambda: slots_used(dialects) == 0, "its slots are free", SOON)


def _has_taken(server: ServeProcess, texts: int) -> bool:
    return slots_used(server) + gauge(server, "hfx_queue_length") == texts


def test_a_full_queue_is_a_429_with_a_time_to_try_again(dialects: ServeProcess) -> None:
    """Each request has 32 texts; the engine has four slots and a queue of 64 requests."""
    connections = []
    wait_until(partial(_has_taken, dialects, 0), "the texts of other tests have ended", SECONDS)
    try:
        for sent in (32, 64):  # one after the other: of two at once, neither may find places for all of its texts
            connections.append(http.client.HTTPConnection(dialects.http_url.rpartition("/")[2], timeout=SECONDS))
            body = json.dumps({"model": RECITAL, "prompt": ["a"] * 32, **ENDLESS})
            connections[-1].request("POST", "/v1/completions", body, {"Authorization": f"Bearer {API_KEY}"})
            wait_until(partial(_has_taken, dialects, sent), f"{sent} texts have places", SECONDS)

        def refused() -> dict[str, tuple[int, dict[str, str], Any]]:
            bodies = {
                "/v1/completions": {"model": RECITAL, "prompt": ["a"] * 32, "stream": True, **ENDLESS},
                f"/models/{RECITAL}": {"inputs": ["a"] * 32, "parameters": ENDLESS},
            }
            return {path: call(dialects, path, body) for path, body in bodies.items()}

        for status, headers, answer in refused().values():
            assert (status, headers.get("retry-after")) == (429, "1"), answer
    finally:
        for connection in connections:
            connection.close()
    wait_until(lambda: slots_used(dialects) == 0, "all slots are free", SOON)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": RECITAL, "prompt": ["a"] * 300, "n": 8}),
        ("/v1/embeddings", {"model": "similar-int8", "input": ["a"] * 3000}),
        ("/models/sentiment-fp32", {"inputs": ["a"] * 3000}),
        ("/models/answers-fp32", {"inputs": [{"question": "a", "context": "b"}] * 3000}),
        ("/models/similar-int8/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a"] * 3000}}),
        ("/v2/models/sentiment-fp32/infer", {"inputs": [{**PIPELINE["inputs"][0], "data": ["a"] * 3000}]}),
    ],
)
def test_too_many_texts_in_one_request_are_a_413(path: str, body: Any, dialects: ServeProcess) -> None:
    status, _, answer = call(dialects, path, body)
    assert (status, "at most" in str(answer)) == (413, True), answer


def paths(server: ServeProcess) -> dict[tuple[str, str], bool]:
    """Return for each method and path whether it needs a key."""
    described = answer_of(server, "/openapi.json", None)["paths"]
    return {
        (method.upper(), path.replace("{model}", "stories")): operation.get("security") != []
        for path, methods in described.items()
        for method, operation in methods.items()
    }


BODIES = {
    "/v1/completions": {"model": "stories", "prompt": PROMPT, "max_tokens": 2},
    "/v1/embeddings": {"model": "similar-int8", "input": TEXT},
    "/v1/rerank": {"model": RANKER, "query": TEXT, "documents": [TEXT]},
    "/v2/rerank": {"query": TEXT, "documents": [TEXT]},
    "/models/{model}": {"inputs": PROMPT, "parameters": {"max_tokens": 2}},
    "/models/{model}/generate": {"inputs": PROMPT, "parameters": {"max_tokens": 2}},
    "/embed": {"inputs": TEXT},
    "/predict": {"inputs": TEXT},
    "/classify": {"input": TEXT},
    "/pooling": {"model": "similar-int8", "input": TEXT},
    "/analyze": {"text": TEXT},
    "/v1/responses": {"model": TALKER, "input": PROMPT, "max_output_tokens": 2},
    "/rerank": {"query": TEXT, "texts": [TEXT]},
    "/tokenize": {"inputs": TEXT},
    "/v2/models/{model}/generate": {"text_input": PROMPT, "max_tokens": 2},
}


def forms(operation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the schemas of a path's body: one, or one for each API that shares the path."""
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    return schema.get("anyOf", [schema])  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", BODIES)
def test_the_openapi_schema_of_a_body_has_exactly_the_accepted_fields(path: str, dialects: ServeProcess) -> None:
    operation = answer_of(dialects, "/openapi.json", None)["paths"][path]["post"]
    schemas = forms(operation)
    schema = next(each for each in schemas if BODIES[path].keys() <= each["properties"].keys())
    target = "/models/similar-int8/tokenize" if path == "/tokenize" else path.replace("{model}", "stories")
    jsonschema.validate(BODIES[path], schema)
    assert call(dialects, target, BODIES[path])[0] == 200
    for name in schema["properties"].keys() - {"parameters"}:
        assert "There is no field" not in str(call(dialects, target, {**BODIES[path], name: None})[2]), name
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**BODIES[path], schema["required"][0]: 3}, schema)
    assert call(dialects, target, {**BODIES[path], schema["required"][0]: 3})[0] in (400, 422)


def test_every_post_body_has_a_valid_openapi_schema(dialects: ServeProcess) -> None:
    for path, methods in answer_of(dialects, "/openapi.json", None)["paths"].items():
        if "post" in methods:
            for schema in forms(methods["post"]):
                jsonschema.Draft202012Validator.check_schema(schema)
                assert schema["properties"], path


def test_an_unknown_path_is_a_404_in_the_dialect_of_its_prefix(dialects: ServeProcess) -> None:
    status, _, answer = call(dialects, "/v1/images", {"prompt": "a garden"})
    assert (status, answer["error"]["code"], answer["error"]["type"]) == (404, "unknown_url", "invalid_request_error")
    status, _, answer = call(dialects, "/images", {"prompt": "a garden"})
    assert status == 404 and "This path does not exist" in answer["error"]


def status_of(server: ServeProcess, method: str, path: str, key: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.http_url.rpartition("/")[2], timeout=SECONDS)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connection.request(method, path, b"{}" if method == "POST" else None, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_each_path_in_openapi_exists_and_needs_a_key_as_described(dialects: ServeProcess) -> None:
    described = paths(dialects)
    assert {("POST", "/v1/completions"), ("POST", "/embed"), ("GET", "/openapi.json")} <= described.keys()
    public = {path for (_, path), needs_key in described.items() if not needs_key}
    public = {path for path in public if not path.startswith("/playground/")}
    assert public == {"/", "/health", "/docs", "/openapi.json"}
    for (method, path), needs_key in described.items():
        status, body = status_of(dialects, method, path, API_KEY)
        assert status not in (404, 405), (method, path, body)
        assert status_of(dialects, method, path, "")[0] == (401 if needs_key else 200), path
        other = "POST" if method == "GET" else "GET"
        if (other, path) not in described:
            assert status_of(dialects, other, path, API_KEY)[0] == 405, path


READING = (
    ("/embed", {"inputs": "a lovely garden"}),
    ("/models/sentiment-fp32", {"inputs": "a lovely garden"}),
    ("/models/nli-fp32", {"inputs": "a garden", "parameters": {"candidate_labels": ["good", "bad"]}}),
    ("/models/answers-fp32", {"inputs": {"question": "Where?", "context": "In a garden."}}),
    ("/similarity", {"inputs": {"source_sentence": "a garden", "sentences": ["a park", "a street"]}}),
    ("/models/similar-int8/tokenize", {"inputs": "a lovely garden"}),
    ("/rerank", {"query": "a garden", "texts": ["a park", "a street"]}),
    ("/v1/embeddings", {"model": "similar-int8", "input": "a lovely garden"}),
    ("/v1/completions", {"model": "stories", "prompt": [5, 6, 7, 8], "max_tokens": 1}),
)


def test_tokens_read_through_every_dialect_count_against_a_keys_limit(dialects: ServeProcess) -> None:
    for key, (path, body) in zip(TIGHT_KEYS, READING, strict=True):
        assert [call(dialects, path, body, key=key)[0] for _ in range(2)] == [200, 429], path


def test_the_tokens_of_a_key_are_counted_logged_and_bounded(dialects: ServeProcess) -> None:
    body = {"model": "stories", "prompt": PROMPT, "max_tokens": 12}
    used, bounded = [], partial(call, dialects, key=BOUNDED_KEY)
    while (answer := bounded("/v1/completions", body))[0] == 200:
        used.append(answer[2]["usage"])
        assert len(used) < 40
    assert answer[0] == 429 and int(answer[1]["retry-after"]) > 0
    assert answer[2]["error"]["message"].startswith("bounded has used its 40")
    total = sum(usage["total_tokens"] for usage in used)
    assert total - used[-1]["total_tokens"] < 40 + len(used)  # a little comes back meanwhile
    assert bounded("/v2/models/stories/generate", {"text_input": PROMPT})[0] == 403
    assert answer_of(dialects, "/v1/completions", body)  # another key
    dialects.wait_for_words('"refusal": "rate"')
    lines = [json.loads(line) for line in dialects.words.splitlines() if '"key": "bounded"' in line]
    done = [line for line in lines if line["status"] == 200]
    assert [(line["input_tokens"], line["output_tokens"]) for line in done] == [
        (usage["prompt_tokens"], usage["completion_tokens"]) for usage in used
    ]
    assert {line["model"] for line in done} == {"stories"} and {line["route"] for line in done} == {"/v1/completions"}
    status, _, _ = call(dialects, "/v1/chat/completions", {**body, "stream": True}, key="no-key-of-the-tests")
    assert status == 401
