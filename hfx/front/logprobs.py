"""Tokens and their log-probabilities in the forms of OpenAI's API and of text-generation-inference."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hfx.client.results import Piece, Token
from hfx.front.fields import Fields, flag, whole_number
from hfx.front.refusals import Refusal

LogprobsForm = Callable[[Sequence[Token]], Mapping[str, Any] | None]
MOST_OF_COMPLETIONS = 5
MOST_OF_CHATS = 20


def completion_alternatives(fields: Fields) -> int | None:
    """The `logprobs` of a completion: how many alternatives of each token; None: no tokens. Raises Refusal (400)."""
    value = fields.get("logprobs")
    if fields.get("top_logprobs"):
        raise Refusal(400, "top_logprobs is for chats. Send logprobs alone.", param="top_logprobs")
    return None if value is None or value is False else whole_number(fields, "logprobs", 0, MOST_OF_COMPLETIONS, 0)


def chat_alternatives(fields: Fields) -> int | None:
    """The same of a chat, in `logprobs` and `top_logprobs`."""
    count = whole_number(fields, "top_logprobs", 0, MOST_OF_CHATS, 0)
    if flag(fields, "logprobs"):
        return count
    if count:
        raise Refusal(400, "top_logprobs go with logprobs. Send logprobs true, or neither.", param="top_logprobs")
    return None


class CompletionLogprobs:
    """The `logprobs` of a completion's choice, of one piece after the other, with `alternatives` of each token.

    `text_offset` counts the characters of the choice's text that are complete before a token.
    """

    def __init__(self, alternatives: int) -> None:
        self._has_top = alternatives > 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def __call__(self, tokens: Sequence[Token]) -> Mapping[str, Any] | None:
        """Those of a piece; None where it has no tokens."""
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
    """The log-probabilities of a token's alternatives and of itself by their texts; the best of those with one text."""
    found: dict[str, float] = {}
    for each in (*token.top, token):
        found.setdefault(each.text, each.logprob)
    return found


def chat_logprobs(tokens: Sequence[Token]) -> Mapping[str, Any] | None:
    """The `logprobs` of a chat's choice, of one piece; None where it has no tokens."""
    content = [{**_chat_token(token), "top_logprobs": [*map(_chat_token, token.top)]} for token in tokens]
    return {"content": content, "refusal": None} if content else None


def _chat_token(token: Token) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw)}


def details(tokens: Sequence[Token], alternatives: int) -> dict[str, Any]:
    """The tokens in a text's details of text-generation-inference."""
    top = {"top_tokens": [_top(token) for token in tokens]} if alternatives else {}
    return {"prefill": [], "tokens": [_tgi_token(token, token.text) for token in tokens], **top}


def finish_reason(reason: str, tokens: Sequence[Token]) -> str:
    """text-generation-inference's word for why a text of `tokens` has ended."""
    if reason != "stop" or not tokens:
        return reason
    return "eos_token" if tokens[-1].special else "stop_sequence"


def stream_tokens(piece: Piece, alternatives: int) -> list[dict[str, Any]]:
    """The tokens of a piece as fields of events of text-generation-inference, one each.

    Their texts together are the piece's, and the names of special tokens. A piece without tokens has one event.
    """
    if not piece.tokens:
        return [{"token": {"id": None, "text": piece.text, "logprob": None, "special": False}}]
    return [
        {"token": _tgi_token(token, text), **({"top_tokens": _top(token)} if alternatives else {})}
        for token, text in zip(piece.tokens, _divided(piece.text, piece.tokens), strict=True)
    ]


def _divided(text: str, tokens: Sequence[Token]) -> list[str]:
    """The part of `text` that each token has; the last that is not special has what is left."""
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
