"""Where sentences end, by a few rules that need no model and no language.

A sentence ends behind . ! ? … and the like (and the quotes and brackets that close there) where white space and then
no small letter follows, behind the full stops of scripts that write no spaces, and at an empty line. A full stop ends
none behind a common abbreviation, initials or the number of a list. Where the rules err, a part of a long document
begins elsewhere, and no text is lost. Knows no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

Span = tuple[int, int]

_SPACED = ".!?…‥؟۔।॥።։"
_UNSPACED = "。！？｡"
_CLOSING = r"\"'”’»›)\]}」』）】》"
_BORDER = re.compile(rf"(?P<stops>[{_SPACED}{_UNSPACED}]+)[{_CLOSING}]*|\n[^\S\n]*(?=\n)")
_OPENING = re.compile(r"[\s\"'“‘«‹(\[{¿¡]*")
_WORD_AT_END = re.compile(r"[^\s(\[{\"'“‘«‹]*\Z")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_NUMBER = re.compile(r"\d{1,3}|[ivxlc]{1,5}", re.IGNORECASE)

# Without the last full stop, in lower case. "etc" is not here: it ends a sentence as often as not.
_ABBREVIATIONS = frozenset((
    "mr", "mrs", "ms", "dr", "prof", "st", "sr", "jr", "rev", "hon", "messrs", "mme", "mlle", "sra", "srta", "dra",
    "gen", "col", "capt", "lt", "sgt", "gov", "sen", "rep", "pres", "supt", "sig", "dott", "dept", "univ", "assn",
    "bros", "co", "corp", "inc", "ltd", "vs", "al", "cf", "ca", "approx", "no", "nos", "nr", "vol", "vols", "ch", "sec",
    "secs", "art", "arts", "para", "pp", "ed", "eds", "fig", "figs", "jan", "feb", "mar", "apr", "jun", "jul", "aug",
    "sep", "sept", "oct", "nov", "dec", "bzw", "evtl", "ggf", "vgl", "mio", "mrd", "bd",
))  # fmt: skip

# How far before a full stop an abbreviation or the number of a list is looked for, in characters.
_LOOK_BACK = 24


def sentences(text: str) -> list[Span]:
    """The sentences of `text` as (start, end), in order and without gaps; white space belongs to what follows it."""
    spans: list[Span] = []
    start = before = 0
    has_words = False
    for end in (*_ends(text), len(text)):
        has_words = has_words or bool(text[before:end].strip())
        before = end
        if has_words:
            spans.append((start, end))
            start, has_words = end, False
    if start < len(text):
        start = spans.pop()[0] if spans else 0
        spans.append((start, len(text)))
    return spans


def _ends(text: str) -> Iterator[int]:
    return (border.end() for border in _BORDER.finditer(text) if _ends_sentence(text, border))


def _ends_sentence(text: str, border: re.Match[str]) -> bool:
    stops, end = border["stops"], border.end()
    if stops is None or any(stop in _UNSPACED for stop in stops):
        return True
    if not text[end : end + 1].isspace() or _first_letter(text, end).islower():
        return False
    return stops != "." or not _is_abbreviated(text, border.start())


def _first_letter(text: str, at: int) -> str:
    """What comes first behind white space and opening quotes, if anything."""
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
