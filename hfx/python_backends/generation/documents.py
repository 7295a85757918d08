"""Divide a document into parts that the model can read: whole sentences, of which neighbouring parts may share some.

request_window.py uses the parts. No text is left out, and every part fits. The only exception is a single character
with more tokens than the model holds: its request is cut, and says how many tokens were lost. The same text always has
the same parts. The division takes time linear in the text. Each part is made when it is needed, in memory that does not
grow with the text.

A sentence ends behind . ! ? … and similar characters (and closing quotes and brackets after them) if white space and
then no lower-case letter follows, behind the full stops of scripts without spaces, and at an empty line. A full stop
behind a common abbreviation, initials or the number of a list item does not end a sentence. Where these rules are
wrong, a part begins elsewhere, but no text is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from .prompts import PromptEncoder

Span = tuple[int, int]
# Called every few milliseconds of work. It may let other threads run, or raise to end the division.
Checkpoint = Callable[[], None]

_SPACED = ".!?…‥؟۔।॥።։"
_UNSPACED = "。！？｡"
_CLOSING = r"\"'”’»›)\]}」』）】》"
_BORDER = re.compile(rf"(?P<stops>[{_SPACED}{_UNSPACED}]+)[{_CLOSING}]*|\n[^\S\n]*(?=\n)")
_INSIDE = re.compile(rf"[^\s{_SPACED}{_UNSPACED}{_CLOSING}]")  # a character that no border has
_OPENING = re.compile(r"[\s\"'“‘«‹(\[{¿¡]*")
_WORD_AT_END = re.compile(r"[^\s(\[{\"'“‘«‹]*\Z")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_NUMBER = re.compile(r"\d{1,3}|[ivxlc]{1,5}", re.IGNORECASE)

# Without the last full stop, in lower case. "etc" is missing, because it ends a sentence as often as not.
_ABBREVIATIONS = frozenset((
    "mr", "mrs", "ms", "dr", "prof", "st", "sr", "jr", "rev", "hon", "messrs", "mme", "mlle", "sra", "srta", "dra",
    "gen", "col", "capt", "lt", "sgt", "gov", "sen", "rep", "pres", "supt", "sig", "dott", "dept", "univ", "assn",
    "bros", "co", "corp", "inc", "ltd", "vs", "al", "cf", "ca", "approx", "no", "nos", "nr", "vol", "vols", "ch", "sec",
    "secs", "art", "arts", "para", "pp", "ed", "eds", "fig", "figs", "jan", "feb", "mar", "apr", "jun", "jul", "aug",
    "sep", "sept", "oct", "nov", "dec", "bzw", "evtl", "ggf", "vgl", "mio", "mrd", "bd",
))  # fmt: skip

# How many characters before a full stop are searched for an abbreviation or the number of a list item.
_LOOK_BACK = 24

# Between two checkpoints, about this many characters are searched for borders, and this many borders are examined at
# most, so that checkpoints are at most 10 ms apart.
_SEARCHED = 2**14
_BORDERS = 2**13


def no_checkpoint() -> None:
    """Do nothing. This is the checkpoint of a division that delays no other work."""


def sentences(text: str, checkpoint: Checkpoint = no_checkpoint) -> Iterator[Span]:
    """Yield the sentences of `text` as (start, end), without gaps; white space belongs to the sentence after it."""
    last: Span | None = None
    start = before = 0
    has_words = False
    ends = (border.end() for border in _borders(text, checkpoint) if _ends_sentence(text, border))
    for end in chain(ends, (len(text),)):
        has_words = has_words or bool(text[before:end].strip())
        before = end
        if has_words:
            if last:
                yield last
            last = start, end
            start, has_words = end, False
    if start < len(text):
        last = last[0] if last else 0, len(text)
    if last:
        yield last


def _borders(text: str, checkpoint: Checkpoint) -> Iterator[re.Match[str]]:
    begin = 0
    while begin < len(text):
        checkpoint()
        inside = _INSIDE.search(text, begin + _SEARCHED)  # no border continues after it
        end = inside.end() if inside else len(text)
        for number, border in enumerate(_BORDER.finditer(text, begin, end), 1):
            yield border
            if number % _BORDERS == 0:
                checkpoint()
        begin = end


def _ends_sentence(text: str, border: re.Match[str]) -> bool:
    stops, end = border["stops"], border.end()
    if stops is None or any(stop in _UNSPACED for stop in stops):
        return True
    if not text[end : end + 1].isspace() or _first_letter(text, end).islower():
        return False
    return stops != "." or not _is_abbreviated(text, border.start())


def _first_letter(text: str, at: int) -> str:
    """Return the first character after white space and opening quotes; empty at the end of the text."""
    opening = _OPENING.match(text, at)
    return text[opening.end() : opening.end() + 1] if opening else ""


def _is_abbreviated(text: str, stop: int) -> bool:
    """Whether the full stop at `stop` belongs to the word before it."""
    before = text[max(0, stop - _LOOK_BACK) : stop]
    found = _WORD_AT_END.search(before)
    word = found[0] if found else ""
    if word.lower() in _ABBREVIATIONS or _INITIALS.fullmatch(word):
        return True
    begins_line = "\n" in before or len(before) == stop
    line = before.rpartition("\n")[2]
    return begins_line and bool(_NUMBER.fullmatch(word)) and not line[: len(line) - len(word)].strip(" \t(")


# The sentences that two parts share take at most this fraction of a part, so that there are few parts.
OVERLAP_SHARE = 0.25

# The most texts, and about the most characters, that are tokenized at a time (20 ms). A text in which the ends of
# tokens are looked up has at most _CHARACTERS_A_TOKEN characters for each token that the model has room for, because a
# tokenizer takes a hundred times as much memory as the characters.
_BATCH = 256
_BATCH_CHARACTERS = 2**14
_CHARACTERS_A_TOKEN = 4

# If a text has more characters than this for each token that the model holds, it is divided without being tokenized
# first to see whether it fits. A sentence or a word of up to _TOKENIZED characters is tokenized in any case.
_MOST_CHARACTERS_A_TOKEN = 16
_TOKENIZED = 2**16

_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class _Unit:
    """A sentence, or a part of a sentence that fits, and its approximate number of tokens."""

    start: int
    end: int
    tokens: int


class _Ahead:
    """The units of an iterator by their numbers. They are read when they are needed, and can be forgotten."""

    def __init__(self, units: Iterator[_Unit]) -> None:
        self._unread = units
        self._units: list[_Unit] = []
        self._begin = 0

    def has(self, number: int) -> bool:
        """Whether there is a unit with this number."""
        while number >= self._begin + len(self._units):
            unit = next(self._unread, None)
            if unit is None:
                return False
            self._units.append(unit)
        return True

    def forget(self, before: int) -> None:
        """Drop the units before a number."""
        del self._units[: max(0, before - self._begin)]
        self._begin = max(before, self._begin)

    def __getitem__(self, number: int) -> _Unit:
        return self._units[number - self._begin]

    def tokens(self, first: int, last: int) -> int:
        """Return the number of tokens of the units `first` to `last`."""
        return sum(self[number].tokens for number in range(first, last + 1))


def parts(text: str, measure: PromptEncoder, overlap: int, checkpoint: Checkpoint = no_checkpoint) -> Iterator[str]:
    """Return the parts of a text, which share up to `overlap` short sentences. A text that fits is its only part."""
    if len(text) <= measure.room * _MOST_CHARACTERS_A_TOKEN and measure.fits(text):
        return iter((text,))
    return _Division(text, measure, overlap, checkpoint).parts()


class _Division:
    def __init__(self, text: str, measure: PromptEncoder, overlap: int, checkpoint: Checkpoint) -> None:
        self._text = text
        self._measure = measure
        self._overlap = overlap
        self._checkpoint = checkpoint
        self._longest = max(measure.room * _MOST_CHARACTERS_A_TOKEN, _TOKENIZED)

    def parts(self) -> Iterator[str]:
        units = _Ahead(self._units())
        done = 0
        while units.has(done):
            first = self._first(units, done)
            last = self._last(units, first, done)
            while not self._fits(units[first].start, units[last].end) and first < last:
                first, last = (first, last - 1) if last > done else (first + 1, last)
            yield self._text[units[first].start : units[last].end].strip()
            done = last + 1
            units.forget(done - self._overlap)

    def _first(self, units: _Ahead, done: int) -> int:
        """Return the first unit of the part whose new text begins with unit `done`."""
        first, shared = done, 0
        most = min(OVERLAP_SHARE * self._measure.room, self._measure.room - units[done].tokens)
        while first > max(0, done - self._overlap) and shared + units[first - 1].tokens <= most:
            first -= 1
            shared += units[first].tokens
        return first

    def _last(self, units: _Ahead, first: int, done: int) -> int:
        """Return the last unit of a part, assuming that units have as many tokens together as separately."""
        tokens = units.tokens(first, done)
        last = done
        while units.has(last + 1) and tokens + units[last + 1].tokens <= self._measure.room:
            last += 1
            tokens += units[last].tokens
        return last

    def _units(self) -> Iterator[_Unit]:
        for sentence in self._measured(sentences(self._text, self._checkpoint)):
            # The number of tokens is approximate: a sentence that is near the limit is measured again.
            fits = 2 * sentence.tokens <= self._measure.room or self._fits(sentence.start, sentence.end)
            yield from (sentence,) if fits else self._words(sentence)

    def _words(self, sentence: _Unit) -> Iterator[_Unit]:
        """Divide, between words, a sentence that does not fit."""
        words = _Ahead(self._measured(self._word_spans(sentence)))
        done = 0
        while words.has(done):
            last = self._last(words, done, done)
            while not self._fits(words[done].start, words[last].end) and done < last:
                last -= 1
            stretch = _Unit(words[done].start, words[last].end, words.tokens(done, last))
            yield from (stretch,) if self._fits(stretch.start, stretch.end) else self._tokens(stretch)
            done = last + 1
            words.forget(done)

    def _word_spans(self, sentence: _Unit) -> Iterator[Span]:
        """Yield the words of a sentence, each with the white space before it. The last word ends with the sentence."""
        start, end = sentence.start, None
        for word in _WORD.finditer(self._text, sentence.start, sentence.end):
            if end is not None:
                yield start, end
                start = end
            end = word.end()
        yield start, sentence.end

    def _tokens(self, word: _Unit) -> Iterator[_Unit]:
        """Divide, between tokens, a word that does not fit."""
        start = word.start
        while start < word.end:
            end = self._token_end(start, word.end)
            while end > start + 1 and not self._fits(start, end):
                end -= max(1, (end - start) // 8)
            yield from self._measured([(start, end)])
            start = end

    def _token_end(self, start: int, end: int) -> int:
        """Return the end of the last token that the model has room for."""
        room = self._measure.room
        end = min(end, start + room * _CHARACTERS_A_TOKEN)
        ends = self._measure.ends(self._text[start:end])
        return end if len(ends) <= room else max(start + ends[room - 1], start + 1)

    def _measured(self, spans: Iterable[Span]) -> Iterator[_Unit]:
        batch: list[Span] = []
        characters = 0
        for start, end in spans:
            batch.append((start, end))
            characters += end - start
            if len(batch) == _BATCH or characters >= _BATCH_CHARACTERS:
                yield from self._lengths(batch)
                batch, characters = [], 0
        yield from self._lengths(batch)

    def _lengths(self, spans: Sequence[Span]) -> Iterator[_Unit]:
        """Yield the spans as units. A span that is too long to be tokenized counts a token for each character."""
        self._checkpoint()
        texts = [self._text[start:end] if end - start <= self._longest else "" for start, end in spans]
        for (start, end), text, tokens in zip(spans, texts, self._measure.lengths(texts), strict=True):
            yield _Unit(start, end, tokens if text else end - start)

    def _fits(self, start: int, end: int) -> bool:
        text = self._text[start:end].strip()
        return len(text) <= self._longest and self._measure.fits(text)
