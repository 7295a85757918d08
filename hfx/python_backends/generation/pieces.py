"""What a caller gets: a text, or its pieces as they come, and of its tokens the id, text and log-probabilities."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional, TypeVar

from ..engine.request import Event, Request, Top
from .detokenizer import Detokenizer, StopStrings

# JSON has no minus infinity; OpenAI's API writes this for a token that can't be.
LEAST = -9999.0
# How the text of a token begins that is no UTF-8 by itself, as OpenAI's API has it: bytes:\xe2\x80
BYTES = "bytes:"


@dataclass(frozen=True)
class Token:
    """A generated token: `text` is what it adds to the text, and the name of a `special` one, which adds nothing.

    Half a character has the text `bytes:\\xe2\\x80`, as in OpenAI's API. `logprob` is the natural logarithm of the
    model's own probability, before temperature, penalties and any other processing. `top` are the most probable tokens
    in its place, best first, as many as `logprobs` asks for; the token may be among them.
    """

    id: int
    text: str
    logprob: float
    special: bool = False
    top: tuple[Token, ...] = ()

    @property
    def raw(self) -> bytes:
        """The text as UTF-8, and half a character as the bytes that it is."""
        if not self.text.startswith(BYTES):
            return self.text.encode()
        return bytes.fromhex(self.text.removeprefix(BYTES).replace("\\x", " "))


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
        "token_log_probs": _table(tokens, "logprob"),
        "token_special": _table(tokens, "special"),
    }


def _table(tokens: Iterable[Token], field: str) -> list[list[Any]]:
    return [[getattr(each, field) for each in (token, *token.top)] for token in tokens]


Item = TypeVar("Item")


@dataclass(frozen=True)
class Piece:
    """The next part of text `index` (of `num_return_sequences`), or all of it.

    The last piece of an index, and no other, has a `finish_reason`: stop (an end token or a stop string), length or
    cancelled; its text may be empty. Counts are those of the request up to here: tokens that the model has read
    (special ones too), tokens of this text that it has generated (the end token too, and those of a stop string), and
    tokens of the input that it did not get to see. `log_probs` and `tokens` are those since the piece before.
    """

    text: str
    index: int = 0
    finish_reason: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    truncated_tokens: int = 0
    log_probs: tuple[float, ...] | None = None
    tokens: tuple[Token, ...] | None = None

    @property
    def is_shown(self) -> bool:
        """Whether a caller gets it: its text may not be decided yet."""
        return bool(self.text or self.finish_reason)

    def outputs(self) -> dict[str, Any]:
        """Its values by the names of a generator's output tensors, those of tokens where they are wanted."""
        return {
            "text_output": self.text,
            "finish_reason": self.finish_reason or "",
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "truncated_tokens": self.truncated_tokens,
            "output_log_probs": self.log_probs or (),
            **({} if self.tokens is None else token_outputs(self.tokens)),
        }


class SequenceReader:
    """Makes the pieces of one sequence: its text up to the first of `stops`, and its tokens where they are wanted.

    Spaces of the tokens' texts are as they are before they are cleaned up, and those of a `verbatim` text, too.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str] = (),
        returns_tokens: bool = False,
        verbatim: bool = False,
    ) -> None:
        self._detokenizer = detokenizer
        self._decoder = detokenizer.open(verbatim)
        self._stops = StopStrings(stops)
        self._returns_tokens = returns_tokens
        self._window = detokenizer.window() if returns_tokens else None

    def first(self, index: int, request: Request) -> Piece:
        """What text `index` of a request begins with."""
        return Piece(
            "",
            index,
            input_tokens=len(request.prompt),
            truncated_tokens=request.truncated_tokens,
            log_probs=() if request.settings.log_probs else None,
            tokens=() if self._returns_tokens else None,
        )

    def next(self, before: Piece, event: Event) -> Piece:
        """What an event adds to the text behind `before`, whose tokens go to this piece where it was not shown.

        Of the tokens of a text's end, those that have come before are left out.
        """
        known = before.output_tokens if event.finish_reason else 0
        text, count = self._text(event, known)
        log_probs, tokens = before.log_probs, before.tokens
        if log_probs is not None:
            new = (event.log_probs or ())[known : known + count]
            log_probs = new if before.is_shown else log_probs + new
        if tokens is not None:
            read = self.tokens(event, known, count)
            tokens = read if before.is_shown else tokens + read
        return Piece(
            text,
            before.index,
            "stop" if self._stops.found else event.finish_reason,
            before.input_tokens,
            before.output_tokens + count,
            before.truncated_tokens,
            log_probs,
            tokens,
        )

    def tokens(self, event: Event, known: int, count: int) -> tuple[Token, ...]:
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

    def _text(self, event: Event, known: int) -> tuple[str, int]:
        """The text of the tokens behind the first `known`, up to a stop string, and how many of them were taken."""
        text = ""
        for count, token_id in enumerate(event.ids[known:], 1):
            text += self._stops.push(self._decoder.push(token_id))
            if self._stops.found:
                return text, count
        if event.finish_reason:
            text += self._stops.push(self._decoder.finish()) + self._stops.finish()
        return text, max(len(event.ids) - known, 0)

    def _token(self, token_id: int, log_prob: float, top: tuple[Token, ...] = ()) -> Token:
        """One that may come next."""
        raw = self._detokenizer.token_bytes(token_id)
        if raw is None:
            assert self._window is not None
            raw = self._window.peek(token_id).encode()
        return Token(token_id, shown(raw), max(log_prob, LEAST), self._detokenizer.is_special(token_id), top)


# None: there is no piece yet; the listener of the stream that is read is notified when to go on.
Pieces = Generator[Optional[Piece], None, None]


def join_pieces(pieces: Sequence[Piece]) -> Piece:
    """Pieces of one text that follow each other, at least one, as a single piece."""
    last = pieces[-1]
    if len(pieces) == 1:
        return last
    text = "".join(piece.text for piece in pieces)
    return replace(
        last,
        text=text,
        log_probs=_joined([piece.log_probs for piece in pieces]),
        tokens=_joined([piece.tokens for piece in pieces]),
    )


def _joined(parts: Sequence[tuple[Item, ...] | None]) -> tuple[Item, ...] | None:
    """All items in order; None where no part has any."""
    given = [part for part in parts if part is not None]
    return tuple(item for part in given for item in part) if given else None


def join_texts(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The whole texts that `pieces` are of, by index; `pieces` must hold the last piece of each."""
    by_index: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_index.setdefault(piece.index, []).append(piece)
    return tuple(join_pieces(by_index[index]) for index in sorted(by_index))


def as_one_piece(pieces: Pieces) -> Pieces:
    """The pieces of one text as a single one, at its end."""
    parts: list[Piece] = []
    for piece in pieces:
        if piece is None:
            yield None
        else:
            parts.append(piece)
    yield join_pieces(parts)
