"""Parts of answers that several dialects share: pipeline results, vectors, and tokens with log-probabilities."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from hfx.client.results import Classification, Entities, Fills, Piece, Rank, Token, best_first
from hfx.front.fields import Fields, flag, shown, whole_number
from hfx.front.refusals import Refusal
from hfx.names import Task

# Results as transformers' pipelines and the hub's tasks represent them

# The field with the generated text, for the tasks that do not use `generated_text`.
TEXT_FIELDS = {Task.SUMMARIZATION: "summary_text", Task.TRANSLATION: "translation_text"}


def text_field(task: Task) -> str:
    """Return the name of the field with the generated text."""
    return TEXT_FIELDS.get(task, "generated_text")


def labels(result: Classification) -> list[dict[str, Any]]:
    """Return the labels of a text, best first."""
    return [{"label": each.label, "score": each.score} for each in result.predictions]


def ranking(ranks: Sequence[Rank], texts: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return `ranks`, best first, each with its text if `texts` are given."""
    rows = [{"index": each.index, "score": each.score} for each in best_first(ranks)]
    return rows if texts is None else [{**row, "text": texts[int(row["index"])]} for row in rows]


def fills(result: Fills) -> list[Any]:
    """Return the tokens for the mask of a text, or a list of such lists if the text has several masks."""
    rows = [[asdict(each) for each in mask] for mask in result.masks]
    return rows[0] if len(rows) == 1 else rows


def entities(result: Entities, aggregation: str) -> list[dict[str, Any]]:
    """Return the entities of a text. With an `aggregation` of "none", they are single tokens with labels."""
    label = "entity" if aggregation == "none" else "entity_group"
    return [
        {label: each.entity, "score": each.score, "word": each.word, "start": each.start, "end": each.end}
        for each in result.entities
    ]


# Vectors

Vector = np.ndarray[Any, np.dtype[np.float32]]
UNIT_TOLERANCE = 1e-5  # the length of a unit vector may differ from 1 by this much in float32
TINY = 1e-12


def vector_json(vector: Vector, encoding: Any) -> Any:
    """Return a vector as JSON: a list for "float", or base64 of little-endian float32. Raises Refusal (400)."""
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    if encoding != "float":
        raise Refusal(400, f"encoding_format is {shown(encoding)}. Send float or base64.", param="encoding_format")
    return vector.tolist()


def normalized(vectors: Vector) -> Vector:
    """Return the rows of `vectors` scaled to length 1. A row that already has length 1 is not changed."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.where(np.abs(lengths - 1) < UNIT_TOLERANCE, vectors, vectors / np.maximum(lengths, TINY)).astype(
        "float32"
    )


def cosines(vectors: Vector) -> list[float]:
    """Return the cosine of the first row with each other row."""
    rows = normalized(vectors)
    return [float(cosine) for cosine in rows[1:] @ rows[0]]


def cosine_pairs(first: Vector, second: Vector) -> list[float]:
    """Return the cosine of each row of `first` with the same row of `second`."""
    cosines: list[float] = (normalized(first) * normalized(second)).sum(axis=1).tolist()
    return cosines


# Tokens and their log-probabilities, as OpenAI's API and text-generation-inference represent them

LogprobsForm = Callable[[Sequence[Token]], Mapping[str, Any] | None]
MOST_OF_COMPLETIONS = 5
MOST_OF_CHATS = 20


def completion_alternatives(fields: Fields) -> int | None:
    """Return the number of alternatives for each token that `logprobs` of a completion requests.

    The number is None if the answer has no tokens. Raises Refusal (400).
    """
    value = fields.get("logprobs")
    if fields.get("top_logprobs"):
        raise Refusal(400, "top_logprobs is for chats. Send logprobs alone.", param="top_logprobs")
    return None if value is None or value is False else whole_number(fields, "logprobs", 0, MOST_OF_COMPLETIONS, 0)


def chat_alternatives(fields: Fields) -> int | None:
    """Return the number of alternatives for each token that `logprobs` and `top_logprobs` of a chat request.

    The number is None if the answer has no tokens. Raises Refusal (400).
    """
    count = whole_number(fields, "top_logprobs", 0, MOST_OF_CHATS, 0)
    if flag(fields, "logprobs"):
        return count
    if count:
        raise Refusal(400, "top_logprobs go with logprobs. Send logprobs true, or neither.", param="top_logprobs")
    return None


class CompletionLogprobs:
    """Makes the `logprobs` of a completion's choice piece by piece, with `alternatives` for each token.

    `text_offset` counts the characters of the choice's text that are complete before a token.
    """

    def __init__(self, alternatives: int) -> None:
        self._has_top = alternatives > 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def __call__(self, tokens: Sequence[Token]) -> Mapping[str, Any] | None:
        """Return the `logprobs` of the next piece, whose tokens are `tokens`, or None if the piece has no tokens."""
        if not tokens:
            return None
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [_by_text(token) for token in tokens] if self._has_top else None,
            "text_offset": [self._next_offset(token) for token in tokens],
        }

    def _next_offset(self, token: Token) -> int:
        offset = self._offset
        if not token.special:
            self._offset += len(self._utf8.decode(token.raw))
        return offset


def _by_text(token: Token) -> dict[str, float]:
    """Return the log-probabilities of a token and its alternatives by text. If texts are equal, the best one counts."""
    found: dict[str, float] = {}
    for each in (*token.top, token):
        found.setdefault(each.text, each.logprob)
    return found


def chat_logprobs(tokens: Sequence[Token]) -> Mapping[str, Any] | None:
    """Return the `logprobs` of one piece of a chat's choice, or None if the piece has no tokens."""
    content = [{**_chat_token(token), "top_logprobs": [*map(_chat_token, token.top)]} for token in tokens]
    return {"content": content, "refusal": None} if content else None


def _chat_token(token: Token) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw)}


def details(tokens: Sequence[Token], alternatives: int) -> dict[str, Any]:
    """Return the tokens as text-generation-inference has them in the details of a text."""
    top = {"top_tokens": [_top(token) for token in tokens]} if alternatives else {}
    return {"prefill": [], "tokens": [_tgi_token(token, token.text) for token in tokens], **top}


def finish_reason(reason: str, tokens: Sequence[Token]) -> str:
    """Return text-generation-inference's name for the reason why a text of `tokens` ended."""
    if reason != "stop" or not tokens:
        return reason
    return "eos_token" if tokens[-1].special else "stop_sequence"


def stream_tokens(piece: Piece, alternatives: int) -> list[dict[str, Any]]:
    """Return the fields of one text-generation-inference event for each token of a piece.

    The texts of the events together are the text of the piece and the names of special tokens. A piece without tokens
    has one event.
    """
    if not piece.tokens:
        return [{"token": {"id": None, "text": piece.text, "logprob": None, "special": False}}]
    return [
        {"token": _tgi_token(token, text), **({"top_tokens": _top(token)} if alternatives else {})}
        for token, text in zip(piece.tokens, _divided(piece.text, piece.tokens), strict=True)
    ]


def _divided(text: str, tokens: Sequence[Token]) -> list[str]:
    """Divide `text` among the tokens. The last token that is not special gets the rest of the text."""
    last = max((at for at, token in enumerate(tokens) if not token.special), default=len(tokens) - 1)
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    parts = []
    for at, token in enumerate(tokens):
        own = "" if token.special else utf8.decode(token.raw)
        part = text if at == last else own if text.startswith(own) else ""
        text = text[len(part) :]
        parts.append(part or (token.text if token.special else ""))
    return parts


def _top(token: Token) -> list[dict[str, Any]]:
    return [_tgi_token(each, each.text) for each in token.top]


def _tgi_token(token: Token, text: str) -> dict[str, Any]:
    return {"id": token.id, "text": text, "logprob": token.logprob, "special": token.special and text == token.text}
