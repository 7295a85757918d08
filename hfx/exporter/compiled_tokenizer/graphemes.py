"""Find the classes of characters in the library's rules for grapheme clusters, as it has its own version of Unicode.

Its Precompiled normalizer shows where a cluster ends: in a cluster of six bytes or more, a mark is looked up by itself;
in a shorter cluster, it is not looked up after a character that the table has.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np

from hfx.exporter.compiled_tokenizer.file import CODE_POINTS


class Class(IntEnum):
    """The classes of characters, as in graphemes.h."""

    OTHER = 0
    CONTROL, CARRIAGE_RETURN, LINE_FEED, EXTEND, JOINER, SPACING_MARK, PREPEND, LEADING, VOWEL = range(1, 10)
    TRAILING, SYLLABLE, CLOSED_SYLLABLE, PICTOGRAPH, CONSONANT = range(10, 15)


CONJUNCT_EXTEND, CONJUNCT_LINKER = 16, 32
# Characters of known classes: a mark, a vowel and a trailing consonant of Hangul, a pictograph, the joiner, the
# linker and a consonant of Devanagari.
ACUTE, VOWEL, TRAILING, PICTOGRAPH, JOINER, LINKER, CONSONANT = "\u0301\u1161\u11a8\u00a9\u200d\u094d\u0915"
FOUND = {"a": "A", ACUTE: "M", **dict.fromkeys((VOWEL, TRAILING, PICTOGRAPH, CONSONANT), "C")}
NAMED = {"\r": Class.CARRIAGE_RETURN, "\n": Class.LINE_FEED, JOINER: Class.JOINER}
SYLLABLES = range(0xAC00, 0xD7A4)  # every 28th of these ends with its vowel
# The code points to probe. The others are ideographs, syllables, for private use, or in planes without characters.
LOOKED_AT = (
    *(range(0x3400), range(0xA000, SYLLABLES.start), range(SYLLABLES.stop, 0xD800)),
    *(range(0xF900, 0x20000), range(0xE0000, 0xE1000)),
)


@functools.cache
def graphemes() -> np.ndarray[Any, Any]:
    """Return the class of each code point, with its flags."""
    codes = np.concatenate([np.arange(part.start, part.stop) for part in LOOKED_AT])
    classes = np.zeros(CODE_POINTS, np.uint8)
    classes[SYLLABLES.start : SYLLABLES.stop] = Class.CLOSED_SYLLABLE
    classes[SYLLABLES.start : SYLLABLES.stop : 28] = Class.SYLLABLE
    classes[codes] = looked_at(codes)
    for character, kind in NAMED.items():
        classes[ord(character)] |= kind
    return classes


def looked_at(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the classes of `codes`, none of which is a Hangul syllable; characters in NAMED have the class OTHER."""
    probe = _Probe(codes)
    joined = probe.lengths("a", "") == 1
    prepended = probe.lengths("", PICTOGRAPH + ACUTE) == 3
    vowel, trailing = (probe.lengths("", after + ACUTE) == 3 for after in (VOWEL, TRAILING))
    extends = probe.lengths(PICTOGRAPH, JOINER + PICTOGRAPH + ACUTE) == 5
    cases = {
        Class.CONTROL: probe.lengths("", 2 * ACUTE) == 2,
        Class.EXTEND: joined & extends,
        Class.SPACING_MARK: joined,
        Class.PREPEND: prepended,
        Class.LEADING: vowel & ~trailing,
        Class.VOWEL: vowel & trailing,
        Class.TRAILING: trailing,
        Class.PICTOGRAPH: probe.lengths("", JOINER + PICTOGRAPH + ACUTE) == 4,
        Class.CONSONANT: probe.lengths("", LINKER + CONSONANT + ACUTE) == 4,
    }
    classes: np.ndarray[Any, Any] = np.select(list(cases.values()), [int(case) for case in cases], int(Class.OTHER))
    linker = joined & (probe.lengths(CONSONANT, CONSONANT + ACUTE) == 4)
    extend = joined & (probe.lengths(CONSONANT, LINKER + CONSONANT + ACUTE) == 5) & ~linker
    classes[np.isin(codes, [ord(character) for character in NAMED])] = Class.OTHER
    classes += CONJUNCT_LINKER * linker + CONJUNCT_EXTEND * extend
    return classes.astype(np.uint8)


class _Probe:
    def __init__(self, codes: np.ndarray[Any, Any]) -> None:
        from tokenizers import normalizers

        table = {key.encode(): text for key, text in FOUND.items()}
        self._normalize = normalizers.Precompiled(charsmap(table)).normalize_str
        self._characters = np.where(np.isin(codes, [10, 13]), 0, codes).astype("<u4").tobytes().decode("utf-32-le")

    def lengths(self, before: str, after: str) -> np.ndarray[Any, Any]:
        """Return the length of the normalized text `before`, code point, `after`, for each code point."""
        text = "\n".join([before + character + after for character in self._characters])
        return np.array([len(line) for line in self._normalize(text).split("\n")])


def charsmap(table: Mapping[bytes, str]) -> bytes:
    """Return a character table for SentencePiece: a double array (darts-clone) with a block of units for each node."""
    bases = {b"": 0}
    for key in table:
        for length in range(1, len(key) + 1):
            bases.setdefault(key[:length], 256 * len(bases))
    units = np.zeros(256 * len(bases), "<u4")
    texts = bytearray()
    for key, base in bases.items():
        place = bases[key[:-1]] ^ key[-1] if key else 0
        units[place] |= (place ^ base) << 10 | (key[-1] if key else 0) | (key in table) << 8
        if key in table:
            units[base] |= 1 << 31 | len(texts)
            texts += table[key].encode() + b"\0"
    return (4 * len(units)).to_bytes(4, "little") + units.tobytes() + bytes(texts)
