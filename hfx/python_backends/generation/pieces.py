"""What a caller gets: a text, or its pieces as they come; and how they are made of the engine's events."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from ..engine.errors import EngineClosed
from ..engine.handle import Handle
from ..engine.request import Event, Request
from .detokenizer import Decoding
from .tokens import Token, TokenReader, token_outputs

if TYPE_CHECKING:
    from .streams import TextStream

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


# None: there is no piece yet; the listener of the stream that is read is notified when to go on.
Pieces = Generator[Optional[Piece], None, None]
Read = Callable[["TextStream", Handle, Request, Sequence["SequenceReader"]], Pieces]


@dataclass(frozen=True)
class SequenceReader:
    """What makes a text of a sequence's tokens and, where they are wanted, what callers see of the tokens."""

    decoding: Decoding
    tokens: TokenReader | None = None


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


def read_live(stream: TextStream, handle: Handle, request: Request, readers: Sequence[SequenceReader]) -> Pieces:
    """Pieces as tokens come, of a text for each of `readers`.

    Once all have met a stop string, the request is cancelled.
    """
    newest = _before_first(request, readers)
    try:
        while newest:
            handle.on_events = stream.listener
            events = handle.poll()
            if events is None:
                raise EngineClosed("the engine ended the request before its texts were complete")
            if not events:
                yield None
            yield from _pieces(events, newest, readers)
    finally:
        handle.cancel()


def read_whole(stream: TextStream, handle: Handle, request: Request, readers: Sequence[SequenceReader]) -> Pieces:
    """A single piece for each text, when all are complete: the listener is not notified before."""
    try:
        while True:
            handle.on_end = stream.listener
            if handle.done:
                break
            yield None
        newest = _before_first(request, readers)
        yield from _pieces(handle.result(), newest, readers)
    finally:
        handle.cancel()


def _pieces(events: Iterable[Event], newest: dict[int, Piece], readers: Sequence[SequenceReader]) -> Iterator[Piece]:
    """The pieces that are shown of `events`; `newest` has the last one of each text, until the text is complete."""
    for event in events:
        if event.index not in newest:
            continue
        piece = newest[event.index] = next_piece(newest[event.index], event, readers[event.index])
        if piece.finish_reason:
            del newest[event.index]
        if piece.is_shown:
            yield piece


def _before_first(request: Request, readers: Sequence[SequenceReader]) -> dict[int, Piece]:
    """What each text begins with, by index."""
    return {
        index: Piece(
            "",
            index,
            input_tokens=len(request.prompt),
            truncated_tokens=request.truncated_tokens,
            log_probs=() if request.settings.log_probs else None,
            tokens=None if reader.tokens is None else (),
        )
        for index, reader in enumerate(readers)
    }


def next_piece(before: Piece, event: Event, reader: SequenceReader) -> Piece:
    """What an event adds to the text behind `before`, whose tokens go to this piece where it was not shown.

    Of the tokens of a text's end, those that have come before are left out.
    """
    known = before.output_tokens if event.finish_reason else 0
    text, count = _decoded(event, known, reader.decoding)
    log_probs, tokens = before.log_probs, before.tokens
    if log_probs is not None:
        new = (event.log_probs or ())[known : known + count]
        log_probs = new if before.is_shown else log_probs + new
    if tokens is not None and reader.tokens is not None:
        read = reader.tokens.read(event, known, count)
        tokens = read if before.is_shown else tokens + read
    return Piece(
        text,
        before.index,
        "stop" if reader.decoding.stopped else event.finish_reason,
        before.input_tokens,
        before.output_tokens + count,
        before.truncated_tokens,
        log_probs,
        tokens,
    )


def _decoded(event: Event, known: int, decoding: Decoding) -> tuple[str, int]:
    """The text of the tokens behind the first `known`, up to a stop string, and how many of them were taken."""
    text = ""
    for count, token_id in enumerate(event.ids[known:], 1):
        text += decoding.push(token_id)
        if decoding.stopped:
            return text, count
    if event.finish_reason:
        text += decoding.finish()
    return text, max(len(event.ids) - known, 0)
