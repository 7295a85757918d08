"""The results for a caller: a text, or its pieces as they come, and the ids, texts and log-probabilities of tokens."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional, TypeVar

from ..engine.request import Event, Request, Top
from .detokenizer import Detokenizer, StopStrings, WindowDecoder

# JSON has no minus infinity; OpenAI's API writes this for an impossible token.
LEAST = -9999.0
# The tensors of tokens, and the fields of Token that they have.
TABLES = {"token_ids": "id", "token_texts": "text", "token_log_probs": "logprob", "token_special": "special"}
# The beginning of the text of a token that is not UTF-8 by itself, as in OpenAI's API: bytes:\xe2\x80
BYTES = "bytes:"


@dataclass(frozen=True)
class Token:
    """A generated token, with its log-probability.

    `text` is what the token adds to the text. A `special` token adds nothing; its `text` is its name. Half a character
    has the text `bytes:\\xe2\\x80`, as in OpenAI's API. `logprob` is the natural logarithm of the model's own
    probability, before temperature, penalties and any other processing. `top` has the most probable tokens at this
    place, best first, as many as the setting `logprobs` says; the token may be among them.

    A token may also be one of the prompt (`prompt_logprobs`). The first of these follows nothing, so it has the
    log-probability 0 and no `top`.
    """

    id: int
    text: str
    logprob: float
    special: bool = False
    top: tuple[Token, ...] = ()

    @property
    def raw(self) -> bytes:
        """The text as UTF-8, or the bytes of half a character."""
        if not self.text.startswith(BYTES):
            return self.text.encode()
        return bytes.fromhex(self.text.removeprefix(BYTES).replace("\\x", " "))


NO_TOKEN = Token(-1, "", 0.0)


def shown(raw: bytes) -> str:
    """Return the text of a token's bytes. A text that could be mistaken for bytes is written as bytes, too."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = BYTES
    return BYTES + "".join(f"\\x{byte:02x}" for byte in raw) if text.startswith(BYTES) else text


def token_outputs(tokens: Sequence[Token], prefix: str = "") -> dict[str, Any]:
    """Return rows [tokens, 1 + alternatives] by the names of a generator's output tensors, after `prefix`.

    The alternatives that the first token of a prompt lacks have the id -1.
    """
    width = max((len(token.top) for token in tokens), default=0)
    rows = [(token, *token.top, *(NO_TOKEN,) * (width - len(token.top))) for token in tokens]
    return {prefix + tensor: [[getattr(each, name) for each in row] for row in rows] for tensor, name in TABLES.items()}


def prompt_outputs(tokens: Sequence[Token]) -> dict[str, Any]:
    """Return the tokens of a prompt by the names of a generator's output tensors; none if there are no tokens."""
    if not tokens:
        return {}
    return {"prompt_log_probs": [token.logprob for token in tokens], **token_outputs(tokens, "prompt_")}


Item = TypeVar("Item")


@dataclass(frozen=True)
class Piece:
    """The next part of text `index` (of `num_return_sequences`), or all of it.

    Only the last piece of an index has a `finish_reason`: stop (an end token or a stop string), length or cancelled;
    its text may be empty. The counts are totals up to this piece. `input_tokens` is the number of tokens that the model
    read, special tokens included. `output_tokens` is the number that it generated for this text, the end token and the
    tokens of a stop string included. `truncated_tokens` is the number of input tokens that were cut off. `log_probs`
    and `tokens` belong to the tokens that came after the previous piece, and `prompt_tokens` are the next tokens of the
    prompt. The pieces with these come first, without a text; if there are several texts, for index 0 only.
    """

    text: str
    index: int = 0
    finish_reason: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    truncated_tokens: int = 0
    log_probs: tuple[float, ...] | None = None
    tokens: tuple[Token, ...] | None = None
    prompt_tokens: tuple[Token, ...] = ()

    @property
    def is_shown(self) -> bool:
        """Whether a caller gets the piece. It does not if no text is decided yet."""
        return bool(self.text or self.finish_reason or self.prompt_tokens)

    def outputs(self) -> dict[str, Any]:
        """Return the piece's values by the names of a generator's output tensors.

        The tensors of tokens are included if the piece has tokens.
        """
        return {
            "text_output": self.text,
            "finish_reason": self.finish_reason or "",
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "truncated_tokens": self.truncated_tokens,
            "output_log_probs": self.log_probs or (),
            **({} if self.tokens is None else token_outputs(self.tokens)),
            **prompt_outputs(self.prompt_tokens),
        }


class SequenceReader:
    """Makes the pieces of one sequence: its text up to the first of `stops`, and its tokens if they are wanted.

    Spaces are not cleaned up in the texts of tokens, nor in a `verbatim` text.
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
        self._prompt_window = detokenizer.window()

    def first(self, index: int, request: Request) -> Piece:
        """Return the empty piece with which text `index` of a request begins."""
        return Piece(
            "",
            index,
            input_tokens=len(request.prompt),
            truncated_tokens=request.truncated_tokens,
            log_probs=() if request.settings.log_probs else None,
            tokens=() if self._returns_tokens else None,
        )

    def next(self, before: Piece, event: Event) -> Piece:
        """Return the piece that an event adds after the piece `before`.

        If `before` was not shown, its tokens go to this piece. The event of a text's end has all tokens of the text;
        those that have come before are left out.
        """
        if event.of_prompt:
            return replace(before, prompt_tokens=self.tokens(event, 0, len(event.ids)))
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
        """Return the `count` tokens after the first `known` tokens of an event."""
        found = []
        window = self._prompt_window if event.of_prompt else self._window
        log_probs = event.log_probs or ()
        for at in range(known, known + count):
            token_id = event.ids[at]
            top: Top = event.top[at] if event.top else ()
            others = tuple(self._token(window, *each) for each in top)
            found.append(self._token(window, token_id, log_probs[at], others))
            if window is not None and not self._detokenizer.is_special(token_id):
                window.push(token_id)
        return tuple(found)

    def _text(self, event: Event, known: int) -> tuple[str, int]:
        """Return the text of the tokens after the first `known`, up to a stop string, and how many of them it took."""
        text = ""
        for count, token_id in enumerate(event.ids[known:], 1):
            text += self._stops.push(self._decoder.push(token_id))
            if self._stops.found:
                return text, count
        if event.finish_reason:
            text += self._stops.push(self._decoder.finish()) + self._stops.finish()
        return text, max(len(event.ids) - known, 0)

    def _token(
        self, window: WindowDecoder | None, token_id: int, log_prob: float, top: tuple[Token, ...] = ()
    ) -> Token:
        """Return a token that may come next."""
        raw = self._detokenizer.token_bytes(token_id)
        if raw is None:
            assert window is not None
            raw = window.peek(token_id).encode()
        return Token(token_id, shown(raw), max(log_prob, LEAST), self._detokenizer.is_special(token_id), top)


# None means that there is no piece yet; the stream's listener is notified when to go on.
Pieces = Generator[Optional[Piece], None, None]


def join_pieces(pieces: Sequence[Piece]) -> Piece:
    """Join consecutive pieces of one text, at least one, to a single piece."""
    last = pieces[-1]
    if len(pieces) == 1:
        return last
    text = "".join(piece.text for piece in pieces)
    return replace(
        last,
        text=text,
        log_probs=_joined([piece.log_probs for piece in pieces]),
        tokens=_joined([piece.tokens for piece in pieces]),
        prompt_tokens=_joined([piece.prompt_tokens for piece in pieces]) or (),
    )


def _joined(parts: Sequence[tuple[Item, ...] | None]) -> tuple[Item, ...] | None:
    """Return all items in order; None if all parts are None."""
    given = [part for part in parts if part is not None]
    return tuple(item for part in given for item in part) if given else None


def join_texts(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Join pieces to whole texts, by index. `pieces` must include the last piece of each text."""
    by_index: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_index.setdefault(piece.index, []).append(piece)
    return tuple(join_pieces(by_index[index]) for index in sorted(by_index))


def as_one_piece(pieces: Pieces) -> Pieces:
    """Yield the pieces of one text as a single piece, at its end."""
    parts: list[Piece] = []
    for piece in pieces:
        if piece is None:
            yield None
        else:
            parts.append(piece)
    yield join_pieces(parts)
