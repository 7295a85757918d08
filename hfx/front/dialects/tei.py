"""text-embeddings-inference's API: embed, predict, rerank, similarity, tokenize and info.

Such a server has one model. Here, the paths are for the only model of the task. For any other model they are below
/models/NAME, which is then the client's base URL. Source: text-embeddings-inference's own docs/openapi.json, 1.9.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import islice
from typing import Any

import numpy as np

from hfx.client import calls
from hfx.errors import RequestRefused
from hfx.front.answers import cosines, normalized, ranking
from hfx.front.catalog import ServedModel
from hfx.front.dialect import Dialect, DialectRequest, routes
from hfx.front.dialects import jina
from hfx.front.fields import (
    Fields,
    check_count,
    check_cut,
    check_dimensions,
    embedding_options,
    flag,
    json_object,
    known_fields,
    prompt_of,
    refuse_unknown,
    shown,
    text,
    texts,
    whole_number,
)
from hfx.front.ranking import only_colbert, ranked
from hfx.front.refusals import Refusal, dumped
from hfx.front.schemas import body, either
from hfx.metadata import INT32_MAX
from hfx.names import TEXT_INPUT, TOKENIZE_SUFFIX, Kind, Task
from hfx.python_backends.errors import TOO_LONG
from hfx.tasks import kind_of
from hfx.tasks.kinds import VECTORS_OF_TOKENS

MOST_INPUTS = 512
TOKENIZED_BYTES = 1 << 17  # of one request, which may have as many tokens, with 65 bytes of the answer for each
DUMPED_TOKENS = 1000
TASKS = (Task.FEATURE_EXTRACTION, Task.TEXT_CLASSIFICATION, Task.TEXT_RANKING)
WRONG_MODEL = "WRONG_MODEL"
EMPTY = "EMPTY"
# The statuses of refusals in this API by the front's statuses and reasons, and the kinds of errors.
STATUSES = {400: 422, 500: 424, 502: 424, 504: 424}
REASONS = {EMPTY: 400, TOO_LONG.name: 413, WRONG_MODEL: 424}
KINDS = {400: "Empty", 424: "Backend", 429: "Overloaded", 503: "Unhealthy"}


async def embed(request: DialectRequest) -> bytes:
    """POST /embed: return a vector for each input, of length 1 unless `normalize` is false."""
    fields = known_fields(request.content, EMBED)
    parameters = json_object(fields.pop("parameters", None) or {})  # huggingface_hub's client sends them here
    refuse_unknown(parameters, EMBED["properties"].keys() - {"parameters"})
    fields |= parameters
    vectors = await vectors_of(request, await _model(request, Task.FEATURE_EXTRACTION), fields, _inputs(fields))
    return dumped((normalized(vectors) if flag(fields, "normalize", True) else vectors).tolist())


async def embed_sparse(request: DialectRequest) -> bytes:
    """POST /embed_sparse: return the numbers of each input's vector that are not 0, from a SPLADE model."""
    fields = known_fields(request.content, EMBED_SPARSE)
    model = await _model_of_kind(request, "sparse vectors", {Kind.SPARSE})
    vectors = await vectors_of(request, model, fields, _inputs(fields))
    return dumped([[{"index": at, "value": float(row[at])} for at in np.flatnonzero(row).tolist()] for row in vectors])


async def embed_all(request: DialectRequest) -> bytes:
    """POST /embed_all: return the vectors of each input's tokens, from a model that was exported with them."""
    fields = known_fields(request.content, EMBED_SPARSE)
    model = await _model_of_kind(request, "vectors of tokens", VECTORS_OF_TOKENS)
    call = calls.embed_tokens(model.name, **prompt_of(fields))
    results = await request.inference.rows(model, [call(one) for one in _inputs(fields)])
    check_cut(fields, results, default=False)
    return b"[%b]" % b",".join([dumped(result.vector.tolist()) for result in results])


async def similarity(request: DialectRequest) -> bytes:
    """POST /similarity: return the cosines of a sentence with other sentences."""
    fields = known_fields(request.content, SIMILARITY)
    inputs, parameters = fields.get("inputs"), fields.get("parameters") or {}
    if not isinstance(inputs, dict) or not isinstance(parameters, dict):
        raise Refusal(
            400, "inputs or parameters is not an object. Send a source_sentence and sentences.", param="inputs"
        )
    sentences = [text(inputs.get("source_sentence"), "source_sentence"), *texts(inputs.get("sentences"), "sentences")]
    model = await _model(request, Task.FEATURE_EXTRACTION)
    return dumped(cosines(await vectors_of(request, model, parameters, sentences)))


async def predict(request: DialectRequest) -> bytes:
    """POST /predict: return the scores of all labels for a text, or for each text in a list of lists of one text.

    The input of a cross-encoder with several labels is a pair, which is a list of two texts, or a list of pairs.
    """
    fields = known_fields(request.content, PREDICT)
    if request.model_name:
        model = await _model(request, Task.TEXT_CLASSIFICATION, Task.TEXT_RANKING)
        if model.task is Task.TEXT_RANKING:
            return await _predict_pairs(request, model, fields)
    if flag(fields, "raw_scores"):
        raise Refusal(400, "raw_scores is true: models send scores after their activation. Leave it out.")
    model = await _model(request, Task.TEXT_CLASSIFICATION)
    inputs = fields.get("inputs")
    is_batch = isinstance(inputs, list)
    call = calls.classify(model.name, INT32_MAX)
    rows = [_single(row) for row in _bounded(inputs)] if isinstance(inputs, list) else [text(inputs, "inputs")]
    results = await request.inference.rows(model, [call(row) for row in rows])
    check_cut(fields, results, default=False)
    answers = [[{"score": each.score, "label": each.label} for each in result.predictions] for result in results]
    return dumped(answers if is_batch else answers[0])


async def _predict_pairs(request: DialectRequest, model: ServedModel, fields: Fields) -> bytes:
    """Return the softmax of the labels' logits, best first, or the logits if `raw_scores` is true."""
    if model.kind is not Kind.PAIR_CLASSIFIER:
        raise Refusal(400, f"{model.name} has one label. Send its texts to /rerank.", reason=WRONG_MODEL)
    inputs = fields.get("inputs")
    rows = _bounded(inputs) if isinstance(inputs, list) else [inputs]
    is_batch = isinstance(rows[0], list)
    pairs = [_pair(row) for row in (rows if is_batch else [inputs])]
    raw = flag(fields, "raw_scores")
    answers = await pair_labels(request, model, pairs, raw=True, softmax=not raw)
    return dumped(answers if is_batch else answers[0])


async def pair_labels(
    request: DialectRequest,
    model: ServedModel,
    pairs: Sequence[tuple[str, str]],
    *,
    raw: bool,
    softmax: bool,
    **prompt: Any,
) -> list[list[dict[str, Any]]]:
    """Return the labels of each pair with their scores, best first."""
    names = request.files.settings(model)["labels"]
    call = calls.predict(model.name, raw or None, softmax or None, **prompt)
    rows = await request.inference.rows(model, [call(pair) for pair in pairs])
    return [
        [{"label": names[at], "score": float(row[at])} for at in np.argsort(-row, kind="stable").tolist()]
        for row in rows
    ]


async def rerank(request: DialectRequest) -> bytes:
    """POST /rerank: return the scores of texts for a query, best first.

    As in text-embeddings-inference, the scores are sigmoids of the logits, or the logits if `raw_scores` is true,
    whatever the checkpoint says. vLLM's clients and others send `documents`; they get the answer of Jina's API, unless
    they send the same `texts`, too.
    """
    fields = json_object(request.content)
    documents, sources = fields.pop("documents", None), fields.pop("texts", None)
    if documents is not None and sources is None:
        return await jina.rerank(replace(request, content={**fields, "documents": documents}))
    if documents not in (None, sources):
        raise Refusal(400, "documents and texts differ. Send one of them.", param="documents")
    refuse_unknown(fields, RERANK["properties"])
    query = text(fields.get("query"), "query")
    if not isinstance(sources, list):
        raise Refusal(400, f"texts is {shown(sources)}. Send a list of texts.", param="texts")
    sources = texts(_bounded(sources, "texts"), "texts")
    model = await only_colbert(request, reason=WRONG_MODEL) or await _model(request, Task.TEXT_RANKING)
    jina.check_shared(request, model, fields)
    raw = flag(fields, "raw_scores")
    request.inference.names[TEXT_INPUT] = "texts"
    ranks = await ranked(request, model, query, sources, raw_scores=raw, **prompt_of(fields))
    check_cut(fields, ranks, default=False)
    most = whole_number(fields, "top_n", 1, INT32_MAX, len(sources))  # litellm's client sends it
    return dumped(ranking(ranks[:most], sources if flag(fields, "return_text") else None))


async def tokenize(request: DialectRequest) -> bytes:
    """POST /tokenize: return the tokens of each input."""
    fields = known_fields(request.content, TOKENIZE)
    model = (
        await _model(request, *TASKS)
        if not request.model_name
        else await request.inference.catalog.model(request.model_name)
    )
    inputs = _inputs(fields)
    if sum(len(one.encode()) for one in inputs) > TOKENIZED_BYTES:
        raise Refusal(413, f"The inputs have more than {TOKENIZED_BYTES} bytes. Send fewer, or shorter ones.")
    special = flag(fields, "add_special_tokens", True)
    if named := prompt_of(fields):
        inputs = request.files.prompted(model, inputs, **named)
    rows = await request.files.tokenized(model, inputs, _counted_tokens, special, request.inference.has_left)
    request.inference.input_tokens = sum(count for count, _ in rows)
    return b"[%b]" % b",".join(row for _, row in rows)


async def info(request: DialectRequest) -> bytes:
    """GET /info: describe the model and the limits of requests."""
    model = await _model(request, *TASKS)
    longest = request.files.settings(model, TOKENIZE_SUFFIX)["max_length"]
    manifest = request.files.manifest(model)
    content = {
        "model_id": manifest["source"]["id"],
        "model_sha": manifest["source"]["revision"],
        "model_dtype": manifest["precision"]["cpu"] or manifest["precision"]["gpu"],
        "served_model_name": model.name,
        "model_type": _kind(request, model),
        "max_concurrent_requests": request.most_requests,
        "max_input_length": longest,
        "max_batch_tokens": longest * model.batch,
        "max_batch_requests": model.batch,
        "max_client_batch_size": MOST_INPUTS,
        "auto_truncate": False,
        "tokenization_workers": 1,
        "version": version("hfx"),
        "sha": None,
        "docker_label": None,
    }
    return dumped(content)


def error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON of an error."""
    status = REASONS.get(refusal.reason, STATUSES.get(refusal.status, refusal.status))
    return status, {"error": refusal.message, "error_type": KINDS.get(status, "Validation")}


async def _model(request: DialectRequest, *tasks: Task) -> ServedModel:
    """Return the model of the path, or the only model for `tasks`. Raises Refusal for a model of another task."""
    catalog = request.inference.catalog
    request.inference.names[TEXT_INPUT] = "inputs"
    try:
        model = await (catalog.model(request.model_name) if request.model_name else catalog.only(*tasks))
    except RequestRefused as failure:
        if request.model_name:
            raise
        raise Refusal(400, f"{failure.message} {failure.fix}", reason=WRONG_MODEL) from None
    if model.task not in tasks:
        message = f"The model {model.name!r} is for {model.task}, not for {' or '.join(tasks)}."
        raise Refusal(400, message, reason=WRONG_MODEL)
    return model


async def _model_of_kind(request: DialectRequest, what: str, kinds: Container[Kind]) -> ServedModel:
    """Return the model of the path, or the only model of a kind in `kinds`, whose results are `what`.

    Raises Refusal for a model of another kind.
    """
    catalog = request.inference.catalog
    models = [model for model in await catalog.models() if model.task is Task.FEATURE_EXTRACTION]
    if request.model_name or not models:
        models = [await _model(request, Task.FEATURE_EXTRACTION)]
    found = [model for model in models if _kind_of(request, model) in kinds]
    if len(found) != 1:
        names = ", ".join(model.name for model in found or models) or "none"
        message = f"Models that give {what} answer here, and the path names none; there are: {names}."
        raise Refusal(400, message, reason=WRONG_MODEL)
    return found[0]


def _kind_of(request: DialectRequest, model: ServedModel) -> Kind | None:
    """Return the model's kind. If the configuration of an export does not name it, the manifest is used, too."""
    if model.metadata.kind:
        return model.kind
    return kind_of(model.metadata, model.task, request.files.manifest(model)["choices"])


def _pooling(request: DialectRequest, model: ServedModel) -> str:
    """Return the pooling that makes the model's vectors, from its manifest."""
    return ",".join(request.files.manifest(model)["choices"].get("pooling") or ["the model's own"])


async def vectors_of(
    request: DialectRequest, model: ServedModel, fields: Fields, inputs: Sequence[str], *, cuts: bool = False
) -> Any:
    """Return the vectors of texts, one in each row. `cuts` is the default of the field `truncate`."""
    call = calls.embed(model.name, **embedding_options(model, fields))
    results = await request.inference.rows(model, [call(one) for one in inputs])
    check_cut(fields, results, default=cuts)
    vectors = np.stack([result.vector for result in results])
    check_dimensions(fields, vectors.shape[1])
    return vectors


def _inputs(fields: Fields) -> list[str]:
    inputs = fields.get("inputs")
    return texts(_bounded(inputs) if isinstance(inputs, list) else inputs, "inputs")


def _bounded(inputs: list[Any], param: str = "inputs") -> list[Any]:
    check_count(len(inputs), param, MOST_INPUTS)
    if not inputs:
        raise Refusal(400, f"{param} is empty. Send at least one text.", param=param, reason=EMPTY)
    return inputs


def _single(row: Any) -> str:
    if not isinstance(row, list) or len(row) != 1:
        message = (
            f"{shown(row)} is not a list of one text. Send a text, or lists of one text each; pairs go to /rerank."
        )
        raise Refusal(400, message, param="inputs")
    return text(row[0], "inputs")


def _pair(row: Any) -> tuple[str, str]:
    if not isinstance(row, list) or len(row) != 2:
        raise Refusal(400, f"{shown(row)} is not a pair. Send a list of two texts, or several.", param="inputs")
    return text(row[0], "inputs"), text(row[1], "inputs")


def _counted_tokens(source: str, encoding: Any) -> tuple[int, bytes]:
    return len(encoding), _tokens(source, encoding)


def _tokens(source: str, encoding: Any) -> bytes:
    """Return the tokens of a text as JSON. It is encoded in pieces, because each encoding blocks the interpreter."""
    rows = zip(encoding.ids, encoding.tokens, encoding.offsets, encoding.special_tokens_mask, strict=True)
    pieces = []
    while tokens := [_token(source, *row) for row in islice(rows, DUMPED_TOKENS)]:
        pieces.append(dumped(tokens)[1:-1])
    return b"[%b]" % b",".join(pieces)


def _token(source: str, token_id: int, token: str, offsets: tuple[int, int], special: int) -> dict[str, Any]:
    start, stop = offsets
    return {
        "id": token_id,
        "text": token if special else source[start:stop],
        "special": bool(special),
        "start": None if special else start,
        "stop": None if special else stop,
    }


def _kind(request: DialectRequest, model: ServedModel) -> dict[str, Any]:
    if model.task is Task.FEATURE_EXTRACTION:
        return {"embedding": {"pooling": _pooling(request, model)}}
    labels = request.files.settings(model)["labels"]
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: index for index, label in enumerate(labels)}}
    return {"reranker" if model.task is Task.TEXT_RANKING else "classifier": names}


CUTTING: Mapping[str, Any] = {"truncate": bool, "truncation_direction": str}
EMBED = body(
    "inputs", inputs=str | list[str], normalize=bool, parameters=dict, prompt_name=str, dimensions=int, **CUTTING
)
EMBED_SPARSE = body("inputs", inputs=str | list[str], prompt_name=str, **CUTTING)
SENTENCES = body("source_sentence sentences", source_sentence=str, sentences=list[str])
SIMILARITY = body("inputs", inputs=SENTENCES, parameters=body("", **CUTTING))
PREDICT = body("inputs", inputs=str | list[list[str]], raw_scores=bool, **CUTTING)
RERANK = body(
    "query texts",
    query=str,
    texts=list[str],
    top_n=int,
    raw_scores=bool,
    return_text=bool,
    prompt_name=str,
    **CUTTING,
    **jina.SHARED,
)
TOKENIZE = body("inputs", inputs=str | list[str], add_special_tokens=bool, prompt_name=str)
DIALECT = Dialect(
    "text-embeddings-inference",
    (
        *routes("POST", "embed", embed, "Vectors of texts.", EMBED),
        *routes("POST", "embed_sparse", embed_sparse, "Sparse vectors of texts.", EMBED_SPARSE),
        *routes("POST", "embed_all", embed_all, "Vectors of the tokens of texts.", EMBED_SPARSE),
        *routes("POST", "similarity", similarity, "Cosines of sentences.", SIMILARITY),
        *routes("POST", "predict", predict, "Scores of all labels.", PREDICT),
        *routes("POST", "rerank", rerank, "Texts ranked for a query.", either(RERANK, jina.BODY)),
        *routes("POST", "tokenize", tokenize, "Tokens of texts.", TOKENIZE),
        *routes("GET", "info", info, "The model and the bounds of requests.", {}),
    ),
    error,
)
