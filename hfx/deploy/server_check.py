"""The requests and answers of `hfx deploy check URL --through DIALECT`.

Requests are sent as clients of the dialect send them, and answers are converted back to output tensors. So the
comparison with the checkpoint includes the front's parsing and JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hfx import names
from hfx.answering import map_all
from hfx.errors import ServerError, UsageError
from hfx.names import GENERATION_TASKS, Task
from hfx.tasks.kinds import VECTORS_OF_TOKENS

if TYPE_CHECKING:
    from hfx.client import Client
    from hfx.exporter.encoder.kinds.kind import Answer, Request
    from hfx.exporter.verify import Infer, Published

Dialect = Literal["openai", "huggingface", "tei", "mlserver"]
UNCOMPARED = (names.OUTPUT_LOG_PROBS,)  # each dialect represents them in its own way
SEVERAL = (*VECTORS_OF_TOKENS, names.Kind.PAIR_CLASSIFIER)  # several vectors or scores of a text: likewise


@dataclass(frozen=True)
class Conversion:
    """A task in a dialect: the path, and functions from a request to JSON and from JSON to output tensors."""

    path: str
    body: Callable[[Published, Request], dict[str, Any]]
    answer: Callable[[Any], Answer]


# Requests


def _settings(request: Request) -> dict[str, Any]:
    """Return the settings of a request: all inputs except its texts and `return_log_probs` (see UNCOMPARED)."""
    texts = {names.TEXT_INPUT, names.QUESTION, names.CONTEXT, names.QUERY, names.RETURN_LOG_PROBS}
    return {name: value for name, value in request.items() if name not in texts}


def _inputs(request: Request) -> Any:
    """Return the text of a request, the question with its context, or the query with the text to rank."""
    if names.QUERY in request:
        return {"query": request[names.QUERY], "texts": [request[names.TEXT_INPUT]]}
    return {key: request[key] for key in (names.QUESTION, names.CONTEXT) if key in request} or request[names.TEXT_INPUT]


def _openai(field: str) -> Callable[[Published, Request], dict[str, Any]]:
    """Return a function that writes the body with the text in `field`."""
    return lambda model, request: {
        "model": model.manifest.name, field: request[names.TEXT_INPUT], **_settings(request)
    }  # fmt: skip


def _huggingface(model: Published, request: Request) -> dict[str, Any]:
    return {"inputs": _inputs(request), "parameters": _settings(request)}


def _tei_text(model: Published, request: Request) -> dict[str, Any]:
    return {"inputs": _inputs(request), "truncate": True}


def _tei_vector(model: Published, request: Request) -> dict[str, Any]:
    return {**_tei_text(model, request), "normalize": False, **_settings(request)}


def _tei_pair(model: Published, request: Request) -> dict[str, Any]:
    """Return the body of /rerank, which gives sigmoids for any activation, or logits with `raw_scores`."""
    options = {"raw_scores": model.activation != "sigmoid", "truncate": True}
    return {**_inputs(request), **options, **_settings(request)}


def _mlserver(model: Published, request: Request) -> dict[str, Any]:
    texts = {"args": request.get(names.TEXT_INPUT)} | {key: request.get(key) for key in (names.QUESTION, names.CONTEXT)}
    inputs = [
        {"name": key, "shape": [1], "datatype": "BYTES", "data": [text]}
        for key, text in texts.items()
        if text is not None
    ]
    return {"inputs": inputs, "parameters": _settings(request)}


def _mlserver_prompt(model: Published, request: Request) -> dict[str, Any]:
    body = _mlserver(model, request)
    return {**body, "parameters": {**body["parameters"], "return_full_text": False}}


# Answers


def _labels(rows: Any) -> Answer:
    return {names.LABEL: [row["label"] for row in rows], names.SCORE: [row["score"] for row in rows]}


def _ranking(answer: Any) -> Answer:
    return {names.LABEL: answer["labels"], names.SCORE: answer["scores"]}


def _entities(rows: Any) -> Answer:
    entities = [
        {
            "entity": row.get("entity_group", row.get("entity")),
            **{field: row[field] for field in ("score", "start", "end", "word")},
        }
        for row in rows
    ]
    return {names.ENTITIES: json.dumps(entities)}


def _fills(answer: Any) -> Answer:
    return {names.FILLS: json.dumps(answer if isinstance(answer[0], list) else [answer])}


def _fields(*fields: str) -> Callable[[Any], Answer]:
    return lambda answer: {field: answer[field] for field in fields}


def _vector(answer: Any) -> Answer:
    return {names.EMBEDDING: [float(value) for value in answer]}


def _generated(answer: Any) -> Answer:
    return {names.TEXT_OUTPUT: next(iter(answer.values()))}  # the first key is that of the task


def _first(convert: Callable[[Any], Answer]) -> Callable[[Any], Answer]:
    return lambda answer: convert(answer[0])


def _elements(convert: Callable[[Any], Answer]) -> Callable[[Any], Answer]:
    """Return a converter for MLServer, whose answer has a JSON text for each element.

    `convert` gets the parsed elements.
    """
    return lambda answer: convert([json.loads(element) for element in answer["outputs"][0]["data"]])


# The tasks of each dialect

MODEL, INFER = "/models/{model}", "/v2/models/{model}/infer"
COMPLETION = Conversion(
    "/v1/completions", _openai("prompt"), lambda answer: {names.TEXT_OUTPUT: answer["choices"][0]["text"]}
)
EMBEDDING = Conversion("/v1/embeddings", _openai("input"), lambda answer: _vector(answer["data"][0]["embedding"]))
GENERATED = Conversion(MODEL, _huggingface, _first(_generated))
CONTINUED = Conversion(INFER, _mlserver_prompt, _elements(_first(_generated)))
SPAN = _fields(names.ANSWER, names.SCORE, names.START, names.END)
SCORE = _fields(names.SCORE)

CONVERSIONS: Mapping[Dialect, Mapping[Task, Conversion]] = {
    "openai": {Task.FEATURE_EXTRACTION: EMBEDDING, **dict.fromkeys(GENERATION_TASKS, COMPLETION)},
    "huggingface": {
        Task.TEXT_CLASSIFICATION: Conversion(MODEL, _huggingface, _first(_labels)),
        Task.ZERO_SHOT_CLASSIFICATION: Conversion(MODEL, _huggingface, _labels),
        Task.TOKEN_CLASSIFICATION: Conversion(MODEL, _huggingface, _entities),
        Task.QUESTION_ANSWERING: Conversion(MODEL, _huggingface, SPAN),
        Task.FEATURE_EXTRACTION: Conversion(MODEL, _huggingface, _vector),
        Task.FILL_MASK: Conversion(MODEL, _huggingface, _fills),
        Task.TEXT_RANKING: Conversion(MODEL, _huggingface, _first(SCORE)),
        **dict.fromkeys(GENERATION_TASKS, GENERATED),
    },
    "tei": {
        Task.TEXT_CLASSIFICATION: Conversion(f"{MODEL}/predict", _tei_text, _labels),
        Task.FEATURE_EXTRACTION: Conversion(f"{MODEL}/embed", _tei_vector, _first(_vector)),
        Task.TEXT_RANKING: Conversion(f"{MODEL}/rerank", _tei_pair, _first(SCORE)),
    },
    "mlserver": {
        Task.TEXT_CLASSIFICATION: Conversion(INFER, _mlserver, _elements(_labels)),
        Task.ZERO_SHOT_CLASSIFICATION: Conversion(INFER, _mlserver, _elements(_first(_ranking))),
        Task.TOKEN_CLASSIFICATION: Conversion(INFER, _mlserver, _elements(_entities)),
        Task.QUESTION_ANSWERING: Conversion(INFER, _mlserver, _elements(_first(SPAN))),
        Task.FEATURE_EXTRACTION: Conversion(INFER, _mlserver, _elements(_first(_vector))),
        **dict.fromkeys(GENERATION_TASKS, CONTINUED),
    },
}


def check_models(dialect: Dialect, models: Sequence[Published]) -> None:
    """Raise UsageError unless the answers of all `models` can be compared through `dialect`."""
    usable = [model for model in models if model.task.task in CONVERSIONS[dialect] and model.kind not in SEVERAL]
    if refused := [
        f"{model.manifest.name} ({model.kind or model.task.task})" for model in models if model not in usable
    ]:
        known = " ".join(model.manifest.name for model in usable)
        raise UsageError(
            f"{', '.join(refused)} can't be compared through {dialect}.",
            f"Name the models that can: {known}." if usable else "Choose another --through.",
        )


def dialect_infer(client: Client, dialect: Dialect, model: Published) -> Infer:
    """Return a function that sends requests to `model` in `dialect`, and returns the output tensors of the dialect.

    Raises UsageError for a client of gRPC.
    """
    from hfx.client.served import json_api

    conversion, post = CONVERSIONS[dialect][model.task.task], json_api(client)
    path = conversion.path.format(model=model.manifest.name)

    def answer(request: Request) -> Answer:
        content = post(path, conversion.body(model, request))
        try:
            return conversion.answer(json.loads(content))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            raise ServerError(
                f"The answer of {client.url}{path} is none of {dialect} ({error!r}).",
                "Give the HTTP address of `hfx serve`.",
            ) from error

    return lambda requests: map_all(answer, requests, client.max_in_flight)
