"""The text of one sequence as its tokens come, one class for each kind of decoder.

Joined, what `push` and `finish` return is the text of the whole sequence, and no piece ends inside a character: what
later tokens can change is held back. Knows neither special tokens (they are left out before) nor stop strings.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

DecodeIds = Callable[[Sequence[int]], str]


class Decoding(Protocol):
    """What the classes here have in common."""

    def push(self, token_id: int) -> str:
        """Take the next token; the text that is now decided, often none."""

    def finish(self) -> str:
        """The rest, as no token follows; an unfinished character is U+FFFD, as in transformers."""


class ByteDecoding:
    """Tokens are bytes of UTF-8 (byte-level BPE). Invalid bytes give the U+FFFD that the library gives."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """See Decoding."""
        return self._utf8.decode(self._bytes_of(token_id))

    def finish(self) -> str:
        """See Decoding."""
        return self._utf8.decode(b"", final=True)


class WindowDecoding:
    """A token's text is what it adds to the text of the tokens before it.

    Of those, one that has a text (the anchor: the decoder then does not take ours for the first) and the last one are
    enough. Tokens that `is_open` wait for the next one that is not: a run of bytes is text only as a whole.
    """

    def __init__(self, decode: DecodeIds, is_open: Callable[[int], bool]) -> None:
        self._decode = decode
        self._is_open = is_open
        self._anchor: list[int] = []
        self._last: list[int] = []
        self._waiting: list[int] = []

    def push(self, token_id: int) -> str:
        """See Decoding."""
        self._waiting.append(token_id)
        return "" if self._is_open(token_id) else self._release()

    def finish(self) -> str:
        """See Decoding."""
        return self._release() if self._waiting else ""

    def _release(self) -> str:
        before = self._anchor + self._last
        known = self._decode(before)
        text = self._decode(before + self._waiting)
        self._keep(text)
        self._waiting = []
        return text[len(known) :]

    def _keep(self, text: str) -> None:
        last = self._waiting[-1:]
        if self._decode(last):
            self._anchor, self._last = last, []
        elif self._anchor and self._decode(self._anchor):
            self._last = last
        else:
            self._anchor += self._waiting


class WholeDecoding:
    """A decoder of which nothing is known: the text comes at the end."""

    def __init__(self, decode: DecodeIds) -> None:
        self._decode = decode
        self._ids: list[int] = []

    def push(self, token_id: int) -> str:
        """See Decoding."""
        self._ids.append(token_id)
        return ""

    def finish(self) -> str:
        """See Decoding."""
        return self._decode(self._ids)
