"""`hfx deploy check URL`: compares a server's answers with the answers that exports recorded from the checkpoints.

With a dialect of the front, requests are sent as clients of the dialect send them, and answers are converted back to
output tensors. So the comparison includes the front's parsing and JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hfx import names
from hfx.answering import map_all, pause
from hfx.errors import ServerError, UsageError, VerificationFailed
from hfx.names import GENERATION_TASKS, Task
from hfx.tasks.kinds import VECTORS_OF_TOKENS

if TYPE_CHECKING:
    from hfx.client.http_transport import JsonPort
    from hfx.exporter.encoder.kinds.kind import Answer, Request
    from hfx.exporter.verify import Infer, Published

Dialect = Literal["openai", "huggingface", "tei", "mlserver"]
NO_HEADERS: Mapping[str, str] = {}
SECONDS = 60.0  # the default timeout for an answer
AT_ONCE = 32
UNCOMPARED = (names.OUTPUT_LOG_PROBS,)  # each dialect represents them in its own way


@dataclass(frozen=True)
class TargetModel:
    """A model to compare. `activation` is that of its scores, and empty if its settings have none.

    `has_several` says that it gives several scores or vectors for a text, which each dialect represents in its own way.
    """

    name: str
    task: Task
    activation: str = ""
    has_several: bool = False


def target_model(published: Published) -> TargetModel:
    """Return the facts about a published model on which its requests depend."""
    has_several = published.kind in {*VECTORS_OF_TOKENS, names.Kind.PAIR_CLASSIFIER}
    return TargetModel(published.manifest.name, published.task.task, published.activation, has_several)


@dataclass(frozen=True)
class Conversion:
    """A task in a dialect: the path, and functions from a request to JSON and from JSON to output tensors."""

    path: str
    body: Callable[[TargetModel, Request], dict[str, Any]]
    answer: Callable[[Any], Answer]


# Requests


def _settings(request: Request) -> dict[str, Any]:
    """Return the settings of a request: all inputs except its texts and `return_log_probs` (see UNCOMPARED)."""
    texts = {names.TEXT_INPUT, names.QUESTION, names.CONTEXT, names.QUERY, names.RETURN_LOG_PROBS}
    return {name: value for name, value in request.items() if name not in texts}


def _inputs(model: TargetModel, request: Request) -> dict[str, Any]:
    pair = {key: request[key] for key in (names.QUESTION, names.CONTEXT) if key in request}
    return {"inputs": pair or request[names.TEXT_INPUT], "parameters": _settings(request)}


def _prompt(model: TargetModel, request: Request) -> dict[str, Any]:
    return {"model": model.name, "prompt": request[names.TEXT_INPUT], **_settings(request)}


def _embedding_input(model: TargetModel, request: Request) -> dict[str, Any]:
    return {"model": model.name, "input": request[names.TEXT_INPUT], **_settings(request)}


def _vector_input(model: TargetModel, request: Request) -> dict[str, Any]:
    return {"inputs": request[names.TEXT_INPUT], "normalize": False, "truncate": True, **_settings(request)}


def _text_input(model: TargetModel, request: Request) -> dict[str, Any]:
    return {"inputs": request[names.TEXT_INPUT], "truncate": True}


def _ranked_inputs(model: TargetModel, request: Request) -> dict[str, Any]:
    pair = {"query": request[names.QUERY], "texts": [request[names.TEXT_INPUT]]}
    return {"inputs": pair, "parameters": _settings(request)}


def _ranked_text(model: TargetModel, request: Request) -> dict[str, Any]:
    """Return the body for TEI.

    TEI gives sigmoids whatever the checkpoint's activation is, or logits with `raw_scores`.
    """
    pair = {"query": request[names.QUERY], "texts": [request[names.TEXT_INPUT]]}
    return {**pair, "raw_scores": model.activation != "sigmoid", "truncate": True, **_settings(request)}


def _pipeline_arguments(model: TargetModel, request: Request) -> dict[str, Any]:
    texts = {"args": request.get(names.TEXT_INPUT)} | {key: request.get(key) for key in (names.QUESTION, names.CONTEXT)}
    inputs = [
        {"name": key, "shape": [1], "datatype": "BYTES", "data": [value]}
        for key, value in texts.items()
        if value is not None
    ]
    return {"inputs": inputs, "parameters": _settings(request)}


def _continued_prompt(model: TargetModel, request: Request) -> dict[str, Any]:
    body = _pipeline_arguments(model, request)
    return {**body, "parameters": {**body["parameters"], "return_full_text": False}}


# Answers


def _labels(rows: Any) -> Answer:
    return {names.LABEL: [each["label"] for each in rows], names.SCORE: [each["score"] for each in rows]}


def _ranking(answer: Any) -> Answer:
    return {names.LABEL: answer["labels"], names.SCORE: answer["scores"]}


def _entities(rows: Any) -> Answer:
    found = [
        {
            "entity": each.get("entity_group", each.get("entity")),
            **{field: each[field] for field in ("score", "start", "end", "word")},
        }
        for each in rows
    ]
    return {names.ENTITIES: json.dumps(found)}


def _fills(answer: Any) -> Answer:
    return {names.FILLS: json.dumps(answer if isinstance(answer[0], list) else [answer])}


def _span(answer: Any) -> Answer:
    return {name: answer[name] for name in (names.ANSWER, names.SCORE, names.START, names.END)}


def _score(answer: Any) -> Answer:
    return {names.SCORE: answer["score"]}


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
COMPLETION = Conversion("/v1/completions", _prompt, lambda answer: {names.TEXT_OUTPUT: answer["choices"][0]["text"]})
EMBEDDING = Conversion("/v1/embeddings", _embedding_input, lambda answer: _vector(answer["data"][0]["embedding"]))
GENERATED = Conversion(MODEL, _inputs, _first(_generated))
CONTINUED = Conversion(INFER, _continued_prompt, _elements(_first(_generated)))

CONVERSIONS: Mapping[Dialect, Mapping[Task, Conversion]] = {
    "openai": {Task.FEATURE_EXTRACTION: EMBEDDING, **dict.fromkeys(GENERATION_TASKS, COMPLETION)},
    "huggingface": {
        Task.TEXT_CLASSIFICATION: Conversion(MODEL, _inputs, _first(_labels)),
        Task.ZERO_SHOT_CLASSIFICATION: Conversion(MODEL, _inputs, _labels),
        Task.TOKEN_CLASSIFICATION: Conversion(MODEL, _inputs, _entities),
        Task.QUESTION_ANSWERING: Conversion(MODEL, _inputs, _span),
        Task.FEATURE_EXTRACTION: Conversion(MODEL, _inputs, _vector),
        Task.FILL_MASK: Conversion(MODEL, _inputs, _fills),
        Task.TEXT_RANKING: Conversion(MODEL, _ranked_inputs, _first(_score)),
        **dict.fromkeys(GENERATION_TASKS, GENERATED),
    },
    "tei": {
        Task.TEXT_CLASSIFICATION: Conversion(f"{MODEL}/predict", _text_input, _labels),
        Task.FEATURE_EXTRACTION: Conversion(f"{MODEL}/embed", _vector_input, _first(_vector)),
        Task.TEXT_RANKING: Conversion(f"{MODEL}/rerank", _ranked_text, _first(_score)),
    },
    "mlserver": {
        Task.TEXT_CLASSIFICATION: Conversion(INFER, _pipeline_arguments, _elements(_labels)),
        Task.ZERO_SHOT_CLASSIFICATION: Conversion(INFER, _pipeline_arguments, _elements(_first(_ranking))),
        Task.TOKEN_CLASSIFICATION: Conversion(INFER, _pipeline_arguments, _elements(_entities)),
        Task.QUESTION_ANSWERING: Conversion(INFER, _pipeline_arguments, _elements(_first(_span))),
        Task.FEATURE_EXTRACTION: Conversion(INFER, _pipeline_arguments, _elements(_first(_vector))),
        **dict.fromkeys(GENERATION_TASKS, CONTINUED),
    },
}


def check_tasks(dialect: Dialect, tasks: Mapping[str, Task]) -> None:
    """Raise UsageError if `dialect` lacks the task of a model (`tasks`: name -> task)."""
    others = [f"{name} ({task})" for name, task in tasks.items() if task not in CONVERSIONS[dialect]]
    usable = [name for name, task in tasks.items() if task in CONVERSIONS[dialect]]
    if others:
        raise UsageError(
            f"The dialect {dialect} can't ask {', '.join(others)}.",
            f"Name the models that it has: {' '.join(usable)}." if usable else "Choose another --through.",
        )


# Sending requests


@contextmanager
def connected(
    url: str,
    dialect: Dialect,
    headers: Mapping[str, str] = NO_HEADERS,
    token: str | None = None,
    ca: Path | None = None,
) -> Iterator[JsonPort]:
    """Yield an HTTP connection to the server at `url`. Raises UsageError for a gRPC address."""
    from hfx.client import Tls
    from hfx.client.address import checked_headers, parse_address
    from hfx.client.http_transport import JsonPort

    address = parse_address(url)
    if address.protocol != "http":
        raise UsageError(f"{address.url} is an address of gRPC; {dialect} is HTTP.", "Give http://HOST:PORT.")
    tls = None if ca is None else Tls(ca=ca)
    with closing(JsonPort(address, checked_headers(address, headers, token, tls), tls)) as port:
        yield port


def dialect_infer(port: JsonPort, dialect: Dialect, model: TargetModel, timeout: float | None) -> Infer:
    """Return a function that sends requests to `model` in `dialect`, and returns the output tensors of the dialect.

    Raises UsageError for a cross-encoder with several labels, and for vectors of tokens.
    """
    from hfx.client.retries import Deadline, Retries, RetryPolicy
    from hfx.client.transport import run

    if model.has_several:
        raise UsageError(
            f"{model.name} has several scores or vectors of a text, which can't be compared through {dialect}.",
            "Leave --through out.",
        )
    conversion, retries = CONVERSIONS[dialect][model.task], Retries(RetryPolicy(), _sleep)
    path = conversion.path.format(model=model.name)

    def answer(request: Request) -> Answer:
        body, deadline = json.dumps(conversion.body(model, request)).encode(), Deadline(timeout or SECONDS)

        async def attempt() -> bytes:
            return port.post(path, body, deadline.left())

        return _answer_of(conversion, run(retries.call(attempt, deadline)), f"{port.url}{path}", dialect)

    return lambda requests: map_all(answer, requests, AT_ONCE)


async def _sleep(seconds: float) -> None:
    pause(seconds)


def _answer_of(conversion: Conversion, content: bytes, url: str, dialect: Dialect) -> Answer:
    try:
        return conversion.answer(json.loads(content))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ServerError(
            f"The answer of {url} is none of {dialect} ({error!r}).", "Give the HTTP address of `hfx serve`."
        ) from error


# Comparing


def compared(
    published: Published, infer: Infer, device: str, max_drop: float | None, dialect: Dialect | None
) -> dict[str, Any]:
    """Compare one model with its checkpoint. Returns the figures, or an `error`, as JSON."""
    from hfx.exporter.verify import against_checkpoint

    name = published.manifest.name
    try:
        figures = against_checkpoint(published, infer, device, max_drop)
    except VerificationFailed as error:
        return {"name": name, "error": error.message}
    is_less = dialect and published.task.task in GENERATION_TASKS
    return {"name": name, **figures, **({"not_compared": list(UNCOMPARED)} if is_less else {})}
