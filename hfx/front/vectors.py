"""Vectors of texts: the call that makes them, their cosines, and their JSON."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from hfx.client import calls
from hfx.front.catalog import ServedModel
from hfx.front.dialect import DialectRequest
from hfx.front.fields import WITHOUT_PROMPTS, Fields
from hfx.front.refusals import dumped, invalid, renamed, shown
from hfx.names import DIMENSIONS, PROMPT_NAME, TEXT_INPUT
from hfx.python_backends.errors import HAS_NO_PROMPTS

Vectors = np.ndarray[Any, np.dtype[np.float32]]
UNIT_TOLERANCE = 1e-5  # the length of a unit vector may differ from 1 by this much in float32
TINY = 1e-12


async def embed(
    request: DialectRequest, model: ServedModel, fields: Fields, texts: Sequence[str], *, truncate: bool = False
) -> Vectors:
    """Return the vectors of `texts`, of shape [number of texts, d].

    `fields` may have a prompt, `dimensions` and `truncate`, whose default is the parameter `truncate`. A model without
    prompts takes the names that sentence-transformers gives to empty prompts. If a model has no shorter vectors,
    `dimensions` must be the length of its vectors. Raises Refusal for other values, and for a text that is too long.
    """
    count, prompt, inputs = fields.number(DIMENSIONS, 0), fields.prompt(), model.metadata.input_types
    if PROMPT_NAME not in inputs:
        others = [name for name, value in prompt.items() if value not in WITHOUT_PROMPTS[name]]
        if others:
            raise invalid(f"{HAS_NO_PROMPTS % others[0]}. Leave it out.", others[0])
        prompt = {}
    options: dict[str, Any] = {**prompt, **({DIMENSIONS: count} if count and DIMENSIONS in inputs else {})}
    results = await request.rows(model, calls.embed(model.name, **options), texts)
    fields.check_read(results, truncate=truncate, texts=request.names.get(TEXT_INPUT, "inputs"))
    vectors = np.stack([result.vector for result in results])
    width = vectors.shape[1]
    if count not in (0, width):
        message = f"{DIMENSIONS} is {count}; the model's vectors have {width}. Leave it out."
        raise renamed(invalid(message, DIMENSIONS), request.names)
    return vectors


async def embed_tokens(
    request: DialectRequest, model: ServedModel, fields: Fields, texts: Sequence[str]
) -> list[Vectors]:
    """Return the vectors of each text's tokens, of shape [tokens, d]. `fields` may have a prompt and `truncate`."""
    results = await request.rows(model, calls.embed_tokens(model.name, **fields.prompt()), texts)
    fields.check_read(results, texts=request.names.get(TEXT_INPUT, "inputs"))
    return [result.vector for result in results]


def normalized(vectors: Vectors) -> Vectors:
    """Return the rows of `vectors` scaled to length 1. A row that already has length 1 is not changed."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(lengths, TINY)
    return np.where(np.abs(lengths - 1) < UNIT_TOLERANCE, vectors, unit).astype("float32")


def cosines(vectors: Vectors) -> list[float]:
    """Return the cosine of the first row with each other row."""
    rows = normalized(vectors)
    return [float(cosine) for cosine in rows[1:] @ rows[0]]


def joined(rows: Sequence[Vectors]) -> bytes:
    """Return a list of vectors as JSON. It is made row by row: Python's floats take eight times the memory."""
    return b"[%b]" % b",".join([dumped(row.tolist()) for row in rows])


async def pair_cosines(request: DialectRequest, model: ServedModel, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Return the cosine of the vectors of each pair's texts."""
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    results = await request.rows(model, calls.embed(model.name), texts)
    vectors = {text: result.vector for text, result in zip(texts, results, strict=True)}
    first, second = (normalized(np.stack([vectors[text] for text in side])) for side in zip(*pairs, strict=True))
    scores: list[float] = (first * second).sum(axis=1).tolist()
    return scores


def vector_json(vector: Vectors, encoding: Any) -> Any:
    """Return a vector as JSON: a list for "float", or base64 of little-endian float32. Raises Refusal (400)."""
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    if encoding != "float":
        raise invalid(f"encoding_format is {shown(encoding)}. Send float or base64.", "encoding_format")
    return vector.tolist()
