"""Tokens and their log-probabilities in OpenAI's API: the fields that request them, and their JSON."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hfx.client.results import Token
from hfx.front.fields import Fields
from hfx.front.refusals import invalid

LogprobsForm = Callable[[Sequence[Token]], Mapping[str, Any] | None]
MOST_OF_COMPLETIONS = 5
MOST_OF_CHATS = 20


def completion_alternatives(fields: Fields) -> int | None:
    """Return the number of alternatives for each token that `logprobs` of a completion requests.

    The number is None if the answer has no tokens. Raises Refusal (400).
    """
    value = fields.get("logprobs")
    if fields.get("top_logprobs"):
        raise invalid("top_logprobs is for chats. Send logprobs alone.", "top_logprobs")
    return None if value is None or value is False else fields.number("logprobs", 0, low=0, high=MOST_OF_COMPLETIONS)


def chat_alternatives(fields: Fields) -> int | None:
    """Return the number of alternatives for each token that `logprobs` and `top_logprobs` of a chat request.

    The number is None if the answer has no tokens. Raises Refusal (400).
    """
    count = fields.number("top_logprobs", 0, low=0, high=MOST_OF_CHATS)
    if fields.flag("logprobs"):
        return count
    if count:
        raise invalid("top_logprobs go with logprobs. Send logprobs true, or neither.", "top_logprobs")
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
