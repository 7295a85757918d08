"""OpenAI's embeddings: vectors of texts."""

from __future__ import annotations

from typing import Any

from hfx.front import vectors
from hfx.front.dialect import DialectRequest
from hfx.front.dialects.openai_parameters import without_ignored
from hfx.front.fields import Fields
from hfx.front.refusals import invalid
from hfx.front.schemas import body
from hfx.names import Task


async def embeddings(request: DialectRequest) -> dict[str, Any]:
    """POST /v1/embeddings: return the vectors of texts."""
    fields = without_ignored(request.fields())
    model = await request.named_model(fields, Task.FEATURE_EXTRACTION)
    texts = input_texts(fields)
    request.name_texts("input")
    fields.refuse_unknown(BODY["properties"])
    rows = await vectors.embed(request, model, fields, texts, truncate=True)
    tokens = await request.count_tokens(model, request.files.prompted(model, texts, **fields.prompt()))
    encoding = fields.get("encoding_format") or "float"
    data = [
        {"object": "embedding", "index": index, "embedding": vectors.vector_json(row, encoding)}
        for index, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model.name, "usage": usage}


def input_texts(fields: Fields) -> list[str]:
    """Return the texts in `input`. Raises Refusal (400) for token ids, which may come from any tokenizer."""
    value = fields.get("input")
    if isinstance(value, list) and value and isinstance(value[0], (int, list)):
        fix = "Send texts: LangChain does so with OpenAIEmbeddings(check_embedding_ctx_length=False)."
        raise invalid(f"input has token ids, which are not supported. {fix}", "input")
    return fields.texts("input")


BODY = body(
    "model input",
    model=str,
    input=str | list[str],
    encoding_format={"enum": ["float", "base64"]},
    dimensions=int,
    prompt_name=str,
    prompt=str,
)
