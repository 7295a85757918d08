"""The file of a compiled tokenizer, as hfx/native/tokenizer/file.h describes it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

VERSION = 1
NONE = 0xFFFFFFFF
CODE_POINTS = 0x110000
LONGEST_TOKEN = 1 << 14  # bytes; a trie has a level for each byte
MOST_NODES = 1 << 24


class NotCompiled(Exception):
    """The tokenizer has a feature that the compiled form lacks; the exception's text names the feature, as a noun."""


class Tag(IntEnum):
    """The tags by which sections are found. Sections tagged DATA are found by the numbers that other sections hold."""

    DATA, TOKEN_ENDS, TEMPLATES, RAW_ADDED, ADDED, NORMALIZER, PRE_TOKENIZER, MODEL, WORD_CLASSES = range(9)


class Writer:
    """Collects the sections of a file. A section is referred to by its number, which `add` returns."""

    def __init__(self) -> None:
        self._sections: list[tuple[int, bytes]] = []
        self._numbers: dict[tuple[bytes, ...], int] = {}

    def add(self, *parts: Any, tag: Tag = Tag.DATA) -> int:
        """Add arrays or bytes as consecutive sections, and return the number of the first, which has the tag.

        Equal DATA is stored once.
        """
        contents = tuple(part if isinstance(part, bytes) else part.tobytes() for part in parts)
        if tag is Tag.DATA and contents in self._numbers:
            return self._numbers[contents]
        number = self._numbers[contents] = len(self._sections)
        tags = [tag, *[Tag.DATA] * (len(contents) - 1)]
        self._sections += zip(tags, contents, strict=True)
        return number

    def add_steps(self, tag: Tag, steps: Iterable[Sequence[int]]) -> None:
        """Add the steps of a normalizer or pre-tokenizer, or the model. Each has a kind, section, flags and value."""
        self.add(np.array(list(steps), "<u4").reshape(-1, 4), tag=tag)

    def content(self) -> bytes:
        """Return the bytes of the file, with the sections added so far."""
        at = 24 + 24 * len(self._sections)
        table, body = [], []
        for tag, content in self._sections:
            table.append(struct.pack("<IIQQ", tag, 0, at, len(content)))
            body.append(content + bytes(-len(content) % 8))
            at += len(body[-1])
        return b"".join([struct.pack("<8sIIQ", b"hfx-tok\n", VERSION, len(table), at), *table, *body])


def blocks(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Split a table of a value for each code point into blocks of 256; return block numbers and distinct blocks."""
    rows = values.reshape(-1, 256)
    numbers: dict[bytes, int] = {}
    places = [numbers.setdefault(row.tobytes(), len(numbers)) for row in rows]
    _, first = np.unique(places, return_index=True)
    return np.array(places, "<u2"), rows[first]


def trie(texts: Sequence[bytes], values: Sequence[int]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the edges and values of a trie (trie.h) of `texts`, which must be distinct and not empty.

    Raises NotCompiled for texts or a trie that are too large.
    """
    longest = max(map(len, texts), default=0)
    if longest > LONGEST_TOKEN:
        raise NotCompiled(f"a token of {longest} bytes")
    nodes, parents, characters = _nodes(texts)
    count = len(parents) + 1
    if count >= MOST_NODES:
        raise NotCompiled("a vocabulary of so many characters")
    # Nodes that end a text come first, so that a node's number gives the place of its value.
    rest = np.setdiff1d(np.arange(1, count), nodes)
    numbers = np.zeros(count, np.uint32)
    numbers[nodes] = np.arange(1, len(nodes) + 1)
    numbers[rest] = np.arange(len(nodes) + 1, count)
    keys = numbers[parents] << np.uint32(8) | characters
    with np.errstate(over="ignore"):
        hashes = keys * np.uint32(0x9E3779B1)
    edges = hashed(np.stack([keys, numbers[1:]], 1), hashes, 32, np.uint32(0))
    return edges, np.array(values, "<u4")


def _nodes(texts: Sequence[bytes]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the last node of each text, and the parent and byte of each node except the root, which is node 0."""
    flat = np.frombuffer(b"".join(texts), np.uint8)
    lengths = np.array([len(text) for text in texts], np.int64)
    starts = np.cumsum(lengths) - lengths
    nodes = np.zeros(len(texts), np.int64)
    keys: list[np.ndarray[Any, Any]] = []
    count = 1
    for level in range(int(lengths.max(initial=0))):
        active = np.flatnonzero(lengths > level)
        unique, places = np.unique(nodes[active] << 8 | flat[starts[active] + level], return_inverse=True)
        nodes[active] = count + places.reshape(-1)
        count += len(unique)
        keys.append(unique)
    every = np.concatenate([np.zeros(0, np.int64), *keys])
    return nodes, every >> 8, (every & 255).astype(np.uint32)


def hashed(
    rows: np.ndarray[Any, Any], hashes: np.ndarray[Any, Any], bits: int, free: np.uint32
) -> np.ndarray[Any, Any]:
    """Return `rows` in a hash table with linear probing, at most half full.

    The slot of a row is given by the upper bits of its hash, which has `bits` bits. Empty slots hold `free`.
    """
    size_bits = max(1, int(2 * len(rows)).bit_length())
    table = np.full((1 << size_bits, rows.shape[1]), free, "<u4")
    taken = np.zeros(len(table), bool)
    slots = (hashes >> hashes.dtype.type(bits - size_bits)).astype(np.int64)
    pending = np.arange(len(rows))
    while len(pending):
        _, first = np.unique(slots[pending], return_index=True)
        first = first[~taken[slots[pending[first]]]]
        placed = pending[first]
        table[slots[placed]] = rows[placed]
        taken[slots[placed]] = True
        pending = np.delete(pending, first)
        slots[pending] = (slots[pending] + 1) % len(table)
    return table
