"""Find out what the tokenizers library, which has its own version of Unicode, does with each code point.

The library is called a few times with long texts, instead of once for each code point.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hfx.exporter.compiled_tokenizer.file import CODE_POINTS, NotCompiled, blocks

Codes = np.ndarray[Any, Any]
# This character is no letter with case and no punctuation, and takes no part in decompositions: it keeps its neighbours
# apart.
SEPARATOR = 0xA000
SURROGATES = range(0xD800, 0xE000)
PLANE = 0x10000
ASSIGNED = (*range(0x40000), *range(0xE0000, 0xE0200))  # all code points that Unicode has assigned, and many more
LONGEST = 255  # a character becomes at most this many bytes


@functools.cache
def probed() -> Codes:
    """Return the code points that are probed one by one; the others behave like their neighbours in the same plane."""
    ends = [
        code
        for plane in range(4, 17)
        for code in (*_ends(plane * PLANE), plane * PLANE + 0xFFFE, plane * PLANE + 0xFFFF)
    ]
    codes = np.array(sorted({*ASSIGNED, *ends}), np.int64)
    return codes[(codes < SURROGATES.start) | (codes >= SURROGATES.stop)]


def _ends(plane: int) -> Iterable[int]:
    return (*range(plane + 0x200, plane + 0x210), *range(plane + 0xFFF0, plane + 0xFFFE))


def spread(values: Codes, same: Codes) -> Codes:
    """Return the values of all code points, given those of `probed`.

    `same[code]` is the value that says that a code point stays as it is. Raises NotCompiled if code points that were
    not probed would have different values.
    """
    result: Codes = same.copy()
    result[probed()] = values
    for plane in range(4, 17):
        ends = np.array(list(_ends(plane * PLANE)))
        kinds = np.unique(np.where(result[ends] == same[ends], CODE_POINTS, result[ends]))
        if len(kinds) > 1:
            raise NotCompiled("characters of private use or not assigned, which differ")
        rest = np.arange(plane * PLANE + (0x200 if plane == 14 else 0), plane * PLANE + 0xFFFE)
        result[rest] = same[rest] if kinds[0] == CODE_POINTS else kinds[0]
    return result


class CharMap:
    """A map of characters: to a code point, or, by the value -1 - n, to the n-th of `texts`."""

    def __init__(self, codes: Codes | None = None, texts: list[str] | None = None) -> None:
        self.codes: Codes = np.arange(CODE_POINTS) if codes is None else codes
        self.texts = texts or []

    def apply(self, texts: list[str]) -> list[str]:
        """Return `texts`, which have no SEPARATOR, with all characters mapped."""
        changed = np.flatnonzero(self.codes != np.arange(CODE_POINTS)).tolist()
        table = {
            code: made if made >= 0 else self.texts[-1 - made]
            for code, made in zip(changed, self.codes[changed].tolist(), strict=True)
        }
        separator = chr(SEPARATOR)
        return separator.join(texts).translate(table).split(separator) if texts else []

    def then(self, second: CharMap) -> CharMap:
        """Return a map that applies this map and then `second`."""
        texts: list[str] = [*second.apply(self.texts), *second.texts]
        after = np.where(second.codes < 0, second.codes - len(self.texts), second.codes)
        codes = np.where(self.codes < 0, self.codes, after[np.maximum(self.codes, 0)])
        return CharMap(codes, texts)

    def sections(self) -> tuple[Codes, Codes, bytes]:
        """Return the contents of the map's sections, as CharMap in tables.h reads them."""
        changed = np.flatnonzero(self.codes != np.arange(CODE_POINTS))
        values, places = np.unique(self.codes[changed], return_inverse=True)
        made = [(chr(value) if value >= 0 else self.texts[-1 - value]).encode() for value in values.tolist()]
        if any(len(text) > LONGEST for text in made):
            raise NotCompiled("a character that becomes a long text")
        offsets: dict[bytes, int] = {}
        text = bytearray(b"\0")  # so that no entry is 0
        for content in made:
            if content not in offsets:
                offsets[content] = len(text)
                text += content
        entries = np.zeros(CODE_POINTS, "<u4")
        entries[changed] = np.array([len(content) | offsets[content] << 8 for content in made], np.int64)[
            places.reshape(-1)
        ]
        return (*blocks(entries), bytes(text))


def char_map(normalizer: Any) -> CharMap:
    """Return what a normalizer of the library makes of each character alone."""
    codes = probed()
    line = np.full(2 * len(codes), SEPARATOR, "<u4")
    line[::2] = np.where(codes == SEPARATOR, ord("-"), codes)
    text = normalizer.normalize_str(_text(line))
    out = _codes(text)
    ends = np.flatnonzero(out == SEPARATOR)
    if len(ends) != len(codes):
        raise NotCompiled("a normalizer that changes Yi syllables")
    lengths = np.diff(ends, prepend=-1) - 1
    texts: dict[str, int] = {}
    made = np.where(lengths == 1, out[np.maximum(ends - 1, 0)], 0)
    others = np.flatnonzero(lengths != 1)
    spans = zip((ends - lengths)[others].tolist(), ends[others].tolist(), strict=True)
    made[others] = [texts.setdefault(text[begin:end], -1 - len(texts)) for begin, end in spans]
    if normalizer.normalize_str(chr(SEPARATOR)) != chr(SEPARATOR):
        raise NotCompiled("a normalizer that changes Yi syllables")
    made[codes == SEPARATOR] = SEPARATOR
    return CharMap(spread(made, np.arange(CODE_POINTS)), list(texts))


def matches(pattern: str) -> Codes:
    """Return which code points match a pattern of one character, by the library's own regular expressions."""
    from tokenizers import Regex, normalizers

    codes = probed()
    out = _codes(normalizers.Replace(Regex(pattern), chr(SEPARATOR)).normalize_str(_text(codes)))
    if len(out) != len(codes):
        raise NotCompiled(f"the pattern {pattern!r}")
    separator = normalizers.Replace(Regex(pattern), "").normalize_str(chr(SEPARATOR)) == ""
    found = np.where(codes == SEPARATOR, separator, out == SEPARATOR)
    return spread(found.astype(np.int64), np.zeros(CODE_POINTS, np.int64)).astype(np.uint8)


def kept(pre_tokenizer: Any, joins: str = "") -> Codes:
    """Return 0 for each code point that a pre-tokenizer drops, and 1 for each that is kept in the pieces of a text.

    With `joins`, the value is 2 for code points that are a separate piece after `joins`.
    """
    codes = probed()
    found = np.zeros(len(codes), np.int64)
    for piece, (begin, end) in pre_tokenizer.pre_tokenize_str(_text(codes)):
        found[begin:end] = len(pre_tokenizer.pre_tokenize_str(joins + piece[0]))
    default = int(found[np.searchsorted(codes, 0x3FFF0)])  # the value of an unassigned code point
    return spread(found, np.full(CODE_POINTS, default, np.int64)).astype(np.uint8)


def _text(codes: Codes) -> str:
    return codes.astype("<u4").tobytes().decode("utf-32-le")


def _codes(text: str) -> Codes:
    return np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.int64)


@functools.cache
def decomposition(form: str) -> CharMap:
    """Return what NFD or NFKD makes of each character alone."""
    from tokenizers import normalizers

    return char_map(getattr(normalizers, form)())


@functools.cache
def combining_classes() -> Codes:
    """Return the number by which the library sorts each mark; 0 for code points that it does not sort."""
    from tokenizers import normalizers

    nfd = normalizers.NFD().normalize_str
    codes = probed()
    codes = codes[decomposition("NFD").codes[codes] == codes]
    low, high = 0x334, 0x345  # marks of the lowest class and of the highest
    above = _swapped(nfd, codes, np.full(len(codes), low))
    below = _swapped(nfd, np.full(len(codes), high), codes)
    marks = codes[above | below]
    references = {unicodedata.combining(chr(code)): code for code in marks.tolist()}
    references.pop(0, None)
    result = np.zeros(CODE_POINTS, np.uint8)
    for order, reference in references.items():
        same = np.full(len(marks), reference)
        alike = ~_swapped(nfd, marks, same) & ~_swapped(nfd, same, marks)
        if result[marks[alike]].any():
            raise NotCompiled("combining classes of Unicode that are not in order")
        result[marks[alike]] = order
    if not result[marks].all():
        raise NotCompiled("combining classes of Unicode that are new")
    return result


def _swapped(nfd: Callable[[str], str], first: Codes, second: Codes) -> Codes:
    """Return whether NFD swaps each character of `first` and the character of `second` that follows it."""
    line = np.full((len(first), 3), SEPARATOR)
    line[:, 0], line[:, 1] = first, second
    out = _codes(nfd(_text(line.reshape(-1)))).reshape(-1, 3)
    swapped: Codes = (out[:, 0] != line[:, 0]) & (out[:, 1] == line[:, 0])
    return swapped


@functools.cache
def compositions() -> Codes:
    """Return the pairs that NFC composes, and their compositions, sorted; without Hangul's syllables."""
    from tokenizers import normalizers

    nfc = normalizers.NFC().normalize_str
    nfd = decomposition("NFD")
    found = []
    for code in np.flatnonzero(nfd.codes < 0).tolist():
        text = nfd.texts[-1 - nfd.codes[code]]
        if 0xAC00 <= code < 0xD7A4 or nfc(text) != chr(code):
            continue
        first, second = nfc(text[:-1]), text[-1]
        if len(first) != 1 or nfc(first + second) != chr(code):
            raise NotCompiled(f"the composition of U+{code:04X}")
        found.append((ord(first), ord(second), code))
    return np.array(sorted(found), "<u4")
