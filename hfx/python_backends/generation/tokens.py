"""The tokens of a text as callers see them: id, text, log-probability, and the most probable ones in its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.request import Event, Top
from .detokenizer import Detokenizer

# JSON has no minus infinity; OpenAI's API writes this for a token that can't be.
LEAST = -9999.0
# How the text of a token begins that is no UTF-8 by itself, as OpenAI's API has it: bytes:\xe2\x80
BYTES = "bytes:"


@dataclass(frozen=True)
class Token:
    """One token; `special` ones have no part in the text. `top` are the most probable in its place, best first.

    `text` is what it adds to the text behind the tokens before it, `bytes:\\x..` where that is no UTF-8 by itself, and
    the name of a special token. `log_prob` is the model's own, before any processing.
    """

    id: int
    text: str
    log_prob: float
    special: bool
    top: tuple[Token, ...] = ()

    @property
    def row(self) -> tuple[Token, ...]:
        """It, and the most probable ones in its place."""
        return (self, *self.top)


class TokenReader:
    """The tokens of one sequence, as they come. Spaces of their texts are as they are before they are cleaned up."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._window = detokenizer.window()

    def read(self, event: Event, known: int, count: int) -> tuple[Token, ...]:
        """The `count` tokens behind the first `known` of an event."""
        found = []
        log_probs = event.log_probs or ()
        for at in range(known, known + count):
            token_id = event.ids[at]
            top: Top = event.top[at] if event.top else ()
            found.append(self._token(token_id, log_probs[at], tuple(self._token(*each) for each in top)))
            if self._window is not None and not self._detokenizer.is_special(token_id):
                self._window.push(token_id)
        return tuple(found)

    def _token(self, token_id: int, log_prob: float, top: tuple[Token, ...] = ()) -> Token:
        """One that may come next."""
        raw = self._detokenizer.token_bytes(token_id)
        if raw is None:
            assert self._window is not None
            raw = self._window.peek(token_id).encode()
        return Token(token_id, shown(raw), max(log_prob, LEAST), self._detokenizer.is_special(token_id), top)


def shown(raw: bytes) -> str:
    """The text of a token's bytes; one that could be mistaken for bytes is written as bytes, too."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = BYTES
    return BYTES + "".join(f"\\x{byte:02x}" for byte in raw) if text.startswith(BYTES) else text


def token_outputs(tokens: Sequence[Token]) -> dict[str, Any]:
    """Rows [tokens, 1 + alternatives] by the names of a generator's output tensors."""
    return {
        "token_ids": _table(tokens, "id"),
        "token_texts": _table(tokens, "text"),
        "token_log_probs": _table(tokens, "log_prob"),
        "token_special": _table(tokens, "special"),
    }


def _table(tokens: Iterable[Token], field: str) -> list[list[Any]]:
    return [[getattr(each, field) for each in token.row] for token in tokens]
