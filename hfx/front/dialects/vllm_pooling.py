"""vLLM's API for the outputs of encoders: POST /classify and /pooling. SGLang and lemonade have /v1/classify.

Requests with `inputs` instead of `input` are those of vLLM's semantic-router, which are text-embeddings-inference's.
Sources: vLLM's entrypoints (pooling), SGLang's classification API, lemonade's API, and semantic-router's
http_classifier, 2026.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hfx.front import labels, vectors
from hfx.front.catalog import ServedModel
from hfx.front.dialect import DialectRequest, routes
from hfx.front.dialects import jina, openai_embeddings, tei
from hfx.front.fields import Fields
from hfx.front.refusals import dumped
from hfx.front.schemas import body, either
from hfx.metadata import INT32_MAX
from hfx.names import Task
from hfx.tasks.kinds import VECTORS_OF_TOKENS

# Fields of vLLM and SGLang, with the values that request what hfx does anyway.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("add_special_tokens", "use_activation", "activation", "softmax"), (True,)),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
}
IGNORED = ("rid", "cache_salt")
EMBED, TOKEN_EMBED, CLASSIFY = "embed", "token_embed", "classify"  # vLLM's tasks


async def classify(request: DialectRequest) -> Any:
    """POST /classify: return the scores of all labels for each text, in the order of the model's labels.

    `labels` has the scores of a single text by label, best first, as lemonade's router reads them.
    """
    fields = request.fields()
    if fields.get("inputs") is not None:
        return await tei.predict(replace(request, content=dict(fields)))
    fields.refuse_unknown(CLASSIFICATION["properties"])
    most = fields.number("top_k", INT32_MAX)
    model, texts = await _read(request, fields, Task.TEXT_CLASSIFICATION)
    rows = await labels.all_scores(request, model, fields, texts)
    data = [
        {"index": at, "label": max(row, key=row.__getitem__), "probs": [*row.values()], "num_classes": len(row)}
        for at, row in enumerate(rows)
    ]
    answer = {**await _head(request, model, CLASSIFY, texts), "data": data}
    if isinstance(fields["input"], str):
        answer["labels"] = dict(sorted(rows[0].items(), key=lambda item: -item[1])[:most])
    return answer


async def pooling(request: DialectRequest) -> bytes:
    """POST /pooling: return the output of an encoder for each text: a vector, vectors of tokens, or scores of labels.

    The JSON is made text by text, because Python's floats take eight times the memory of the vectors.
    """
    fields = request.fields(POOLING)
    model, texts = await _read(request, fields, Task.FEATURE_EXTRACTION, Task.TEXT_CLASSIFICATION)
    task = _task(request, model)
    if fields.get("task") not in (None, task):
        raise fields.refusal("task", f"Send {task}, the task of {model.name}, or leave it out.")
    rows = await OUTPUTS[task](request, model, fields, texts)
    encoding = fields.get("encoding_format") or "float"
    data = [
        b'{"index":%d,"object":"pooling","data":%b}' % (at, dumped(vectors.vector_json(row, encoding)))
        for at, row in enumerate(rows)
    ]
    read = request.files.prompted(model, texts, **fields.prompt())
    head = dumped(await _head(request, model, "pool", read))
    return b'%b,"data":[%b]}' % (head[:-1], b",".join(data))


async def _read(request: DialectRequest, fields: Fields, *tasks: Task) -> tuple[ServedModel, list[str]]:
    """Return the model and the texts of a request, whose fields are checked. Raises Refusal (400, 413)."""
    if fields.get("input") is None:
        fields["input"] = fields.get("text")
    model = await request.chosen_model(fields, *tasks)
    jina.check_shared(request, model, fields)
    fields.refuse_unsupported(NEUTRAL)
    if fields.get("truncate_prompt_tokens") is not None:
        fields["truncate"] = True
    request.name_texts("input")
    return model, openai_embeddings.input_texts(fields)


async def _head(request: DialectRequest, model: ServedModel, prefix: str, read: list[str]) -> Mapping[str, Any]:
    """Return the fields of an answer beside its data. `read` are the texts that the model reads."""
    tokens = await request.count_tokens(model, read)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}
    head = {"id": f"{prefix}-{request.id}", "object": "list", "created": int(time.time()), "model": model.name}
    return {**head, "usage": usage}


def _task(request: DialectRequest, model: ServedModel) -> str:
    if model.task is Task.TEXT_CLASSIFICATION:
        return CLASSIFY
    return TOKEN_EMBED if request.files.kind(model) in VECTORS_OF_TOKENS else EMBED


async def _probabilities(
    request: DialectRequest, model: ServedModel, fields: Fields, texts: Sequence[str]
) -> list[vectors.Vectors]:
    rows = await labels.all_scores(request, model, fields, texts)
    return [np.array([*row.values()], np.float32) for row in rows]


Output = Callable[[DialectRequest, ServedModel, Fields, Sequence[str]], Awaitable[Iterable[vectors.Vectors]]]
OUTPUTS: Mapping[str, Output] = {EMBED: vectors.embed, TOKEN_EMBED: vectors.embed_tokens, CLASSIFY: _probabilities}
SHARED = {
    **jina.SHARED,
    **{name: type(values[0]) for name, values in NEUTRAL.items()},
    **dict.fromkeys(IGNORED, str),
    "truncate": bool,
    "model": str,
    "input": str | list[str],
}
CLASSIFICATION = body("input", text=str, top_k=int, **SHARED)
CHOICES = {"task": {"enum": [*OUTPUTS]}, "encoding_format": {"enum": ["float", "base64"]}}
POOLING = body("input", dimensions=int, prompt_name=str, prompt=str, **CHOICES, **SHARED)
BODIES = either(CLASSIFICATION, tei.PREDICT)
ROUTES = (
    *routes("POST", "classify", classify, "Scores of all labels.", BODIES),
    *routes("POST", "v1/classify", classify, "Scores of all labels.", BODIES),
    *routes("POST", "pooling", pooling, "The outputs of an encoder.", POOLING),
)
