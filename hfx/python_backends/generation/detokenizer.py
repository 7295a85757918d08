"""Convert token ids to text, all at once or as the tokens come.

Both give the text of transformers' `tokenizer.decode(ids, skip_special_tokens=True)`, with spaces cleaned up if the
tokenizer is configured so.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..spaces import clean_up

Step = Mapping[str, Any]
DecodeIds = Callable[[Sequence[int]], str]

# The tokens that ByteFallback takes for bytes, such as <0x0A>.
_BYTE_TOKEN = re.compile(r"<0x..>", re.DOTALL)
_HEX_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")

# The decoders that look at one token at a time. Metaspace and WordPiece also depend on whether the token is the first,
# and BPEDecoder on whether it is the last: BPEDecoder leaves out the space after the last token, so this space counts
# as part of the next token's text.
_TOKENWISE = ("Replace", "ByteFallback", "Strip", "Metaspace", "WordPiece", "BPEDecoder")


def decoder_steps(decoder: Step | None) -> Sequence[Step]:
    """Return the decoders of a tokenizer.json in order of application.

    If the tokenizer has none, the result is empty, and the library joins the tokens with spaces.
    """
    if decoder is None:
        return ()
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in decoder_steps(inner)]
    return (decoder,)


def _is_tokenwise(steps: Sequence[Step]) -> bool:
    """Whether WindowDecoder can be used with these decoders."""
    kinds = [step["type"] for step in steps]
    fused = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    return all(kind in _TOKENWISE for kind in kinds[:fused]) and all(map(_reads_the_beginning, steps[fused + 1 :]))


def token_bytes(token: str) -> bytes:
    """Return a token's bytes for the ByteLevel decoder. A token with other characters (an added token) is UTF-8."""
    try:
        return bytes(BYTE_OF[character] for character in token)
    except KeyError:
        return token.encode()


def _reads_the_beginning(step: Step) -> bool:
    """Whether a decoder changes at most the beginning of the fused text."""
    return bool(step["type"] == "Fuse" or (step["type"] == "Strip" and step["stop"] == 0))


def _byte_of() -> dict[str, int]:
    """Return GPT-2's table of characters and bytes: printable Latin-1 is unchanged, other bytes are U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_of()


class Decoder(Protocol):
    """Converts the tokens of one sequence to text, as they come."""

    def push(self, token_id: int) -> str:
        """Take the next token, and return the text that is now decided, which is often empty."""

    def finish(self) -> str:
        """Return the rest of the text. An unfinished character is U+FFFD, as in transformers."""


class _ByteDecoder:
    """A decoder for tokens that are bytes of UTF-8 (byte-level BPE). Invalid bytes become U+FFFD, as in the library."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._bytes_of(token_id))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDecoder:
    """A decoder that takes for a token's text what the token adds to the text of the tokens before it.

    This text depends at most on whether the token is the first one, and on the token before it. Only a run of <0x..>
    tokens also depends on the tokens that follow, because its bytes become text only together. Therefore, tokens for
    which `is_open` is true are held back until a token for which it is false. To decode a token, at most two earlier
    tokens are needed: the last one and, if that has no text, the anchor, which is the last token that has text. With
    it, the library does not take the new token for the first one. At the beginning, the anchor has all tokens up to the
    first text.
    """

    def __init__(self, decode: DecodeIds, is_open: Callable[[int], bool]) -> None:
        self._decode = decode
        self._is_open = is_open
        self._anchor: list[int] = []
        self._last: list[int] = []
        self._waiting: list[int] = []
        self._known: str | None = None  # the text of the anchor and the last token, for `peek`

    def push(self, token_id: int) -> str:
        """Take the next token, and return the text that is now decided."""
        self._waiting.append(token_id)
        return "" if self._is_open(token_id) else self._release()

    def finish(self) -> str:
        """Return the rest of the text."""
        return self._release() if self._waiting else ""

    def peek(self, token_id: int) -> str:
        """Return the text that a token would add if it came next, and no token were held back."""
        before = self._anchor + self._last
        if self._known is None:
            self._known = self._decode(before)
        return self._decode([*before, token_id])[len(self._known) :]

    def _release(self) -> str:
        before = self._anchor + self._last
        known = self._decode(before)
        text = self._decode(before + self._waiting)
        self._keep(text)
        self._waiting = []
        return text[len(known) :]

    def _keep(self, text: str) -> None:
        self._known = None
        last = self._waiting[-1:]
        if self._decode(last):
            self._anchor, self._last = last, []
        elif self._anchor and self._decode(self._anchor):
            self._last = last
        else:
            self._anchor += self._waiting


# Each pattern of spaces.py is a space and at most this many other characters.
_REACH = 3

# A text must not be cut before the space after one of these words. After "'", the space belongs to the pattern " ' ".
# After "n", the space can be removed as part of " ' " (in " n ' t"), which completes the pattern " n't".
_OPEN_WORDS = ("'", "n")


class _CleanedDecoder:
    """A decoder that cleans up another decoder's text, whose end is held back until no later text can change it."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._held = ""

    def push(self, token_id: int) -> str:
        text = self._held + self._decoder.push(token_id)
        # The last place at which the text can be cut so that both parts can be cleaned up separately.
        cut = next((at for at in range(len(text), 0, -1) if _separates(text, at)), 0)
        self._held = text[cut:]
        return clean_up(text[:cut])

    def finish(self) -> str:
        return clean_up(self._held + self._decoder.finish())


def _separates(text: str, at: int) -> bool:
    """Whether no pattern can lie across the place `at`, whichever patterns were replaced before.

    Patterns begin with a space, and only spaces are removed. So no pattern lies across `at` if there is no space within
    _REACH characters before it, or if there is a space at `at` that ends a word other than _OPEN_WORDS.
    """
    space = text.rfind(" ", max(0, at - _REACH), at)
    if space < 0:
        return True
    word = text[space + 1 : at]
    return text[at : at + 1] == " " and word != "" and word not in _OPEN_WORDS


class StopStrings:
    """Passes text on up to the first stop string, and holds back text that may be the beginning of a stop string.

    The text ends before the stop string that is complete first (of two that are complete at once, the longer one),
    however the text is divided into tokens and pieces.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Add `text`, and return the text that can now be shown. After a stop string, this is always empty."""
        if self.found or not self._stops:
            return "" if self.found else text
        text = self._held + text
        stop = _first_complete(text, self._stops)
        if stop is not None:
            self.found = True
            self._held = ""
            return text[:stop]
        waits = _beginning_of_one(text, self._stops)
        self._held = text[len(text) - waits :]
        return text[: len(text) - waits]

    def finish(self) -> str:
        """Return the text that is still held back. Call this when no more text follows."""
        held, self._held = self._held, ""
        return held


def _first_complete(text: str, stops: Sequence[str]) -> int | None:
    """Return where the stop string that ends first begins, or None if `text` has no stop string."""
    places = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(places)[1] if places else None


def _beginning_of_one(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest end of `text` that is the beginning of a stop string."""
    longest = min(len(text), max(map(len, stops)) - 1)
    return next((n for n in range(longest, 0, -1) if any(stop.startswith(text[-n:]) for stop in stops)), 0)


class Detokenizer:
    """Converts ids to texts with a tokenizers.Tokenizer, for all sequences and threads.

    `cleans_up_spaces` is the tokenizer's `clean_up_tokenization_spaces`. `special_ids` have no text, and neither have
    tokens that the tokenizer itself marks as special.
    """

    def __init__(self, tokenizer: Any, cleans_up_spaces: bool = False, special_ids: Sequence[int] = ()) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self._tokenizer = tokenizer
        self._cleans_up = cleans_up_spaces
        self._special = frozenset(special_ids) | {token_id for token_id, token in added.items() if token.special}
        self._steps = decoder_steps(json.loads(tokenizer.to_str())["decoder"])
        self._is_byte_level = [step["type"] for step in self._steps] == ["ByteLevel"]
        self._has_byte_tokens = any(step["type"] == "ByteFallback" for step in self._steps)
        self._bytes: dict[int, bytes] = {}

    def open(self, verbatim: bool = False) -> Decoder:
        """Return the decoder of a new sequence. Spaces of a `verbatim` sequence are never cleaned up."""
        decoder = self._decoder()
        return _CleanedDecoder(decoder) if self._cleans_up and not verbatim else decoder

    def window(self) -> WindowDecoder | None:
        """Return the decoder for single tokens of a new sequence; None if `token_bytes` is enough for all tokens."""
        return None if self._is_byte_level else WindowDecoder(self._text, lambda _: False)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a whole sequence."""
        text = self._text(ids)
        return clean_up(text) if self._cleans_up else text

    def is_special(self, token_id: int) -> bool:
        """Whether a token has no text."""
        return token_id in self._special

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return a token's bytes (a special token's name as bytes); None if they depend on the tokens before it."""
        if self.is_special(token_id):
            return str(self._tokenizer.id_to_token(token_id) or "").encode()
        if self._is_byte_level:
            return self._bytes_of(token_id)
        token = self._token(token_id)
        if token is None:
            return b""
        return bytes.fromhex(token[3:5]) if self._has_byte_tokens and _HEX_TOKEN.fullmatch(token) else None

    def _decoder(self) -> Decoder:
        if self._is_byte_level:
            return _ByteDecoder(self._bytes_of)
        # Nothing is known about other decoders, so the whole text comes at the end.
        return WindowDecoder(self._text, self._is_open if _is_tokenwise(self._steps) else lambda _: True)

    def _text(self, ids: Sequence[int]) -> str:
        kept = [token_id for token_id in ids if token_id not in self._special]
        return self._tokenizer.decode(kept, skip_special_tokens=True)  # type: ignore[no-any-return]

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id not in self._bytes:
            token = self._token(token_id)
            self._bytes[token_id] = b"" if token is None else token_bytes(token)
        return self._bytes[token_id]

    def _is_open(self, token_id: int) -> bool:
        """Whether a token's text depends on the tokens that follow. A token without text belongs to the next one."""
        token = self._token(token_id)
        return token is None or (self._has_byte_tokens and _BYTE_TOKEN.fullmatch(token) is not None)

    def _token(self, token_id: int) -> str | None:
        return None if token_id in self._special else self._tokenizer.id_to_token(token_id)
