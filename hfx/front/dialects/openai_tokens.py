"""The tokens of prompts and answers in OpenAI's API: prompts of ids, `echo`, log-probabilities, `prompt_logprobs`."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hfx.client.results import Generation, Piece, Token
from hfx.client.settings import GenerationSettings
from hfx.front.fields import Fields, check_count
from hfx.front.refusals import invalid
from hfx.metadata import INT32_MAX
from hfx.names import MAX_TOKENS, PROMPT_LOGPROBS, PROMPT_TOKEN_IDS
from hfx.python_backends.engine.generation_settings import MOST_ALTERNATIVES, MOST_IDS

Prompt = str | tuple[int, ...]
Result = TypeVar("Result", Generation, Piece)
LogprobsForm = Callable[[Sequence[Token]], Mapping[str, Any] | None]
MOST_OF_COMPLETIONS = 5
MOST_OF_CHATS = 20


def read_prompts(fields: Fields) -> list[Prompt]:
    """Return the prompts of a completion: texts, or lists of token ids. Raises Refusal (400, 413)."""
    value = fields.get("prompt")
    lists = [value] if isinstance(value, list) and value and type(value[0]) is int else value
    if not isinstance(lists, list) or not lists or not isinstance(lists[0], list):
        return [*fields.texts("prompt")]
    check_count(len(lists), "prompt")
    check_count(sum(len(ids) for ids in lists if isinstance(ids, list)), "prompt", MOST_IDS, "token ids")
    return [_checked_ids(ids) for ids in lists]


def _checked_ids(ids: Any) -> tuple[int, ...]:
    if not isinstance(ids, list) or not ids or any(type(each) is not int or not 0 <= each <= INT32_MAX for each in ids):
        raise invalid("prompt has a list that is not a list of token ids. Send texts, or lists of ids.", "prompt")
    return tuple(ids)


@dataclass(frozen=True)
class Shown:
    """What an answer has of the prompt, and whether it `has_new` tokens (no if max_tokens is 0).

    With `echo`, the prompt precedes the text, and its tokens precede the new tokens. `logprobs` is vLLM's number of
    alternatives for each token of the prompt.
    """

    echo: bool = False
    logprobs: int | None = None
    has_new: bool = True

    def settings(self, chosen: GenerationSettings, prompt: Prompt) -> tuple[str, GenerationSettings]:
        """Return the text and the settings for a prompt. `chosen` are the settings of the request."""
        ids = None if isinstance(prompt, str) else prompt
        wanted = [self.logprobs, chosen.logprobs if self.echo else None, 0 if self.echo and ids else None]
        alternatives = max((each for each in wanted if each is not None), default=None)
        return "" if ids else str(prompt), replace(chosen, prompt_token_ids=ids, prompt_logprobs=alternatives)

    def cut(self, result: Result) -> Result:
        """Return a result without the new token that is generated even if max_tokens is 0."""
        if self.has_new:
            return result
        reason = result.finish_reason and "length"
        return replace(result, text="", tokens=(), log_probs=(), output_tokens=0, finish_reason=reason)

    def tokens(self, result: Generation | Piece) -> Sequence[Token]:
        """Return the tokens of a choice's `logprobs`."""
        return (*result.prompt_tokens, *result.tokens) if self.echo else result.tokens

    def fields(self, result: Generation) -> dict[str, Any]:
        """Return vLLM's further fields of a choice.

        `rank` is null for a token that is not among the most probable ones.
        """
        if self.logprobs is None:
            return {}
        rows = [_by_id(token, self.logprobs) for token in result.prompt_tokens[1:]]
        return {PROMPT_LOGPROBS: [None, *rows]}


def read_shown(fields: Fields, names: dict[str, str]) -> Shown:
    """Take the fields about the prompt out of `fields`, and add the caller's names of them to `names`.

    Raises Refusal (400).
    """
    echo = fields.flag("echo")
    logprobs = fields.get(PROMPT_LOGPROBS)
    if logprobs is not None:
        logprobs = fields.number(PROMPT_LOGPROBS, 0, low=0, high=MOST_ALTERNATIVES)
        if fields.flag("stream"):
            raise invalid("prompt_logprobs is not for streams. Send echo and logprobs.", PROMPT_LOGPROBS)
    names |= {PROMPT_LOGPROBS: "echo" if logprobs is None else PROMPT_LOGPROBS, PROMPT_TOKEN_IDS: "prompt"}
    has_new = fields.get(MAX_TOKENS) != 0 or not (echo or logprobs is not None)
    for name in ("echo", PROMPT_LOGPROBS):
        fields.pop(name, None)
    if not has_new:
        fields[MAX_TOKENS] = 1
    return Shown(echo, logprobs, has_new)


class Echo:
    """The text of a prompt that precedes a completion, piece by piece. `shown` says whether there is any."""

    def __init__(self, prompt: Prompt, shown: Shown) -> None:
        self._text = prompt if isinstance(prompt, str) and shown.echo else ""
        has_tokens = shown.echo and not isinstance(prompt, str)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace") if has_tokens else None

    def __call__(self, tokens: Sequence[Token]) -> str:
        """Return the text that the next tokens of the prompt add. It is complete when there are no more tokens."""
        text, self._text = self._text, ""
        if self._utf8 is None:
            return text
        return self._utf8.decode(b"".join(token.raw for token in tokens if not token.special), final=not tokens)


def _by_id(token: Token, alternatives: int) -> Mapping[str, Any]:
    """Return a token and its alternatives as vLLM writes them."""
    ranks = {each.id: rank for rank, each in enumerate(token.top, 1)}
    shown = {each.id: each for each in (*token.top[:alternatives], token)}
    return {
        str(number): {"logprob": each.logprob, "rank": ranks.get(number), "decoded_token": each.text}
        for number, each in shown.items()
    }


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

    `text_offset` counts the characters of the choice's text that are complete before a token. If `echo` is true, the
    first token is the prompt's first, which has null in place of its log-probabilities.
    """

    def __init__(self, alternatives: int, echo: bool = False) -> None:
        self._alternatives = alternatives
        self._given = int(echo)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def __call__(self, tokens: Sequence[Token]) -> Mapping[str, Any] | None:
        """Return the `logprobs` of the next piece, whose tokens are `tokens`, or None if the piece has no tokens."""
        if not tokens:
            return None
        given, self._given = self._given, 0
        nulls, others = [None] * given, tokens[given:]
        top = [*nulls, *(_by_text(token, self._alternatives) for token in others)]
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [*nulls, *(token.logprob for token in others)],
            "top_logprobs": top if self._alternatives else None,
            "text_offset": [self._next_offset(token) for token in tokens],
        }

    def _next_offset(self, token: Token) -> int:
        offset = self._offset
        if not token.special:
            self._offset += len(self._utf8.decode(token.raw))
        return offset


def _by_text(token: Token, alternatives: int) -> dict[str, float]:
    """Return the log-probabilities of a token and its alternatives by text. If texts are equal, the best one counts."""
    found: dict[str, float] = {}
    for each in (*token.top[:alternatives], token):
        found.setdefault(each.text, each.logprob)
    return found


def chat_logprobs(tokens: Sequence[Token]) -> Mapping[str, Any] | None:
    """Return the `logprobs` of one piece of a chat's choice, or None if the piece has no tokens."""
    content = [{**_chat_token(token), "top_logprobs": [*map(_chat_token, token.top)]} for token in tokens]
    return {"content": content, "refusal": None} if content else None


def _chat_token(token: Token) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw)}


PROMPT_SCHEMA = {"prompt": str | list[str] | list[int] | list[list[int]], "echo": bool, PROMPT_LOGPROBS: int}
