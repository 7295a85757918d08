"""text-embeddings-inference's API: embed, predict, rerank, similarity, tokenize and info.

Such a server has one model. Here, the paths are for the only model of the task. For any other model they are below
/models/NAME, which is then the client's base URL. Source: text-embeddings-inference's own docs/openapi.json, 1.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np

from hfx.client import calls
from hfx.front import ranking, schemas, vectors
from hfx.front.catalog import ServedModel
from hfx.front.dialect import Dialect, DialectRequest, routes
from hfx.front.dialects import jina, tei_requests, tei_tokens
from hfx.front.fields import Fields
from hfx.front.refusals import invalid
from hfx.metadata import INT32_MAX
from hfx.names import Task


async def embed(request: DialectRequest) -> Any:
    """POST /embed: return a vector for each input, of length 1 unless `normalize` is false."""
    fields = request.fields(EMBED)
    parameters = Fields.of(fields.get("parameters") or {})  # huggingface_hub's client sends them here
    parameters.refuse_unknown(EMBED["properties"].keys() - {"parameters"})
    fields.update(parameters)
    model = await tei_requests.model_for(request, Task.FEATURE_EXTRACTION)
    rows = await vectors.embed(request, model, fields, tei_requests.inputs_of(fields))
    return (vectors.normalized(rows) if fields.flag("normalize", True) else rows).tolist()


async def embed_sparse(request: DialectRequest) -> list[Any]:
    """POST /embed_sparse: return the numbers of each input's vector that are not 0, from a SPLADE model."""
    fields = request.fields(EMBED_SPARSE)
    model = await tei_requests.sparse_model(request)
    rows = await vectors.embed(request, model, fields, tei_requests.inputs_of(fields))
    return [[{"index": at, "value": float(row[at])} for at in np.flatnonzero(row).tolist()] for row in rows]


async def embed_all(request: DialectRequest) -> bytes:
    """POST /embed_all: return the vectors of each input's tokens, from a model that was exported with them."""
    fields = request.fields(EMBED_SPARSE)
    model = await tei_requests.token_model(request)
    return vectors.joined(await vectors.embed_tokens(request, model, fields, tei_requests.inputs_of(fields)))


async def similarity(request: DialectRequest) -> list[float]:
    """POST /similarity: return the cosines of a sentence with other sentences."""
    fields = request.fields(SIMILARITY)
    inputs, parameters = fields.get("inputs"), fields.get("parameters") or {}
    if not isinstance(inputs, dict) or not isinstance(parameters, dict):
        raise invalid("inputs or parameters is not an object. Send a source_sentence and sentences.", "inputs")
    sentences = [Fields(inputs).text("source_sentence"), *Fields(inputs).texts("sentences")]
    model = await tei_requests.model_for(request, Task.FEATURE_EXTRACTION)
    return vectors.cosines(await vectors.embed(request, model, Fields(parameters), sentences))


async def predict(request: DialectRequest) -> list[Any]:
    """POST /predict: return the scores of all labels for a text, or for each text in a list of lists of one text.

    The input of a cross-encoder with several labels is a pair, which is a list of two texts, or a list of pairs.
    """
    fields = request.fields(PREDICT)
    if request.model_name:
        model = await tei_requests.model_for(request, Task.TEXT_CLASSIFICATION, Task.TEXT_RANKING)
        if model.task is Task.TEXT_RANKING:
            return await _predict_pairs(request, model, fields)
    if fields.flag("raw_scores"):
        raise invalid("raw_scores is true: models send scores after their activation. Leave it out.")
    model = await tei_requests.model_for(request, Task.TEXT_CLASSIFICATION)
    texts = tei_requests.single_texts(fields)
    results = await request.rows(model, calls.classify(model.name, INT32_MAX), texts)
    fields.check_read(results)
    answers = [[{"score": each.score, "label": each.label} for each in result.predictions] for result in results]
    return answers if isinstance(fields["inputs"], list) else answers[0]


async def _predict_pairs(request: DialectRequest, model: ServedModel, fields: Fields) -> list[Any]:
    """Return the softmax of the labels' logits, best first, or the logits if `raw_scores` is true."""
    if not model.is_pair_classifier:
        raise invalid(f"{model.name} has one label. Send its texts to /rerank.", reason=tei_requests.WRONG_MODEL)
    pairs = tei_requests.pairs(fields)
    raw = fields.flag("raw_scores")
    answers = await ranking.pair_labels(request, model, pairs, raw=True, softmax=not raw)
    return answers if isinstance(fields["inputs"][0], list) else answers[0]


async def rerank(request: DialectRequest) -> Any:
    """POST /rerank: return the scores of texts for a query, best first.

    As in text-embeddings-inference, the scores are sigmoids of the logits, or the logits if `raw_scores` is true,
    whatever the checkpoint says. vLLM's clients and others send `documents`; they get the answer of Jina's API, unless
    they send the same `texts`, too.
    """
    fields = request.fields()
    documents, sent = fields.pop("documents", None), fields.get("texts")
    if documents is not None and sent is None:
        fields.pop("texts", None)
        return await jina.rerank(replace(request, content={**fields, "documents": documents}))
    if documents not in (None, sent):
        raise invalid("documents and texts differ. Send one of them.", "documents")
    fields.refuse_unknown(RERANK["properties"])
    query = fields.text("query")
    if isinstance(sent, list):
        tei_requests.check_number(fields, "texts")
    texts = fields.listed("texts")
    model = await ranking.only_colbert(request, reason=tei_requests.WRONG_MODEL)
    model = model or await tei_requests.model_for(request, Task.TEXT_RANKING)
    jina.check_shared(request, model, fields)
    raw = fields.flag("raw_scores")
    request.name_texts("texts")
    ranks = await ranking.ranked(request, model, query, texts, raw_scores=raw, **fields.prompt())
    fields.check_read(ranks)
    most = fields.number("top_n", len(texts))  # litellm's client sends it
    return ranking.listed(ranks[:most], texts if fields.flag("return_text") else None)


async def info(request: DialectRequest) -> dict[str, Any]:
    """GET /info: describe the model and the limits of requests."""
    model = await tei_requests.model_for(request, *tei_requests.TASKS)
    longest, manifest = request.files.text_settings(model)["max_length"], request.files.manifest(model)
    return {
        "model_id": manifest["source"]["id"],
        "model_sha": manifest["source"]["revision"],
        "model_dtype": manifest["precision"]["cpu"] or manifest["precision"]["gpu"],
        "served_model_name": model.name,
        "model_type": _model_type(request, model),
        "max_concurrent_requests": request.most_requests,
        "max_input_length": longest,
        "max_batch_tokens": longest * model.batch,
        "max_batch_requests": model.batch,
        "max_client_batch_size": tei_requests.MOST_INPUTS,
        "auto_truncate": False,
        "tokenization_workers": 1,
        "version": version("hfx"),
        "sha": None,
        "docker_label": None,
    }


def _model_type(request: DialectRequest, model: ServedModel) -> dict[str, Any]:
    if model.task is Task.FEATURE_EXTRACTION:
        pooling = request.files.manifest(model)["choices"].get("pooling") or ["the model's own"]
        return {"embedding": {"pooling": ",".join(pooling)}}
    labels = request.files.settings(model)["labels"]
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: index for index, label in enumerate(labels)}}
    return {"reranker" if model.task is Task.TEXT_RANKING else "classifier": names}


CUTTING: Mapping[str, Any] = {"truncate": bool, "truncation_direction": str}
EMBED = schemas.body(
    "inputs", inputs=str | list[str], normalize=bool, parameters=dict, prompt_name=str, dimensions=int, **CUTTING
)
EMBED_SPARSE = schemas.body("inputs", inputs=str | list[str], prompt_name=str, **CUTTING)
SENTENCES = schemas.body("source_sentence sentences", source_sentence=str, sentences=list[str])
SIMILARITY = schemas.body("inputs", inputs=SENTENCES, parameters=schemas.body("", **CUTTING))
PREDICT = schemas.body("inputs", inputs=str | list[list[str]], raw_scores=bool, **CUTTING)
RERANK = schemas.body(
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
ROUTES = (
    *routes("POST", "embed", embed, "Vectors of texts.", EMBED),
    *routes("POST", "embed_sparse", embed_sparse, "Sparse vectors of texts.", EMBED_SPARSE),
    *routes("POST", "embed_all", embed_all, "Vectors of the tokens of texts.", EMBED_SPARSE),
    *routes("POST", "similarity", similarity, "Cosines of sentences.", SIMILARITY),
    *routes("POST", "predict", predict, "Scores of all labels.", PREDICT),
    *routes("POST", "rerank", rerank, "Texts ranked for a query.", schemas.either(RERANK, jina.BODY)),
    *routes("POST", "tokenize", tei_tokens.tokenize, "Tokens of texts.", tei_tokens.BODY),
    *routes("GET", "info", info, "The model and the bounds of requests.", {}),
)
DIALECT = Dialect("text-embeddings-inference", ROUTES, tei_requests.error, has_batches=True)
