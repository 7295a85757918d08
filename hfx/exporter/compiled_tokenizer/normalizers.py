"""Compile a tokenizer's normalizer to the steps of hfx/native/tokenizer/normalizer.h."""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

from hfx.exporter.compiled_tokenizer import characters
from hfx.exporter.compiled_tokenizer.characters import CharMap, char_map
from hfx.exporter.compiled_tokenizer.file import NotCompiled, Tag, Writer, blocks
from hfx.exporter.compiled_tokenizer.graphemes import graphemes

MOST_STEPS = 32
# A process that exports several models caches this many normalizers, each of at most this many characters of JSON.
KEPT, KEPT_CHARACTERS = 8, 1 << 20


class Kind(IntEnum):
    """The kinds of steps of normalizer.h."""

    MAP = 1
    ORDER, COMPOSE, REPLACE, REPLACE_RUN, STRIP, PREPEND, PRECOMPILED = range(2, 9)


Step = tuple[Kind, tuple[Any, ...], int, int]  # kind, contents of its sections, flags and value
Part = CharMap | Step  # neighbouring character maps are joined to one step


def add_normalizer(writer: Writer, spec: dict[str, Any] | None) -> None:
    """Add the normalizer of a tokenizer.json. Raises NotCompiled."""
    text = json.dumps(spec)
    make = _steps if len(text) <= KEPT_CHARACTERS else _steps.__wrapped__
    steps = make(text) if spec else ()
    if len(steps) > MOST_STEPS:
        raise NotCompiled(f"a normalizer of {len(steps)} steps")
    writer.add_steps(
        Tag.NORMALIZER, [(kind, writer.add(*sections), flags, value) for kind, sections, flags, value in steps]
    )


@functools.lru_cache(KEPT)
def _steps(spec: str) -> tuple[Step, ...]:
    """Return the steps of a normalizer given as JSON. Computing the tables of BERT's normalizer takes 0.3 s."""
    parts: list[Part] = []
    for part in _parts(json.loads(spec)):
        if isinstance(part, CharMap) and parts and isinstance(parts[-1], CharMap):
            parts[-1] = parts[-1].then(part)
        else:
            parts.append(part)
    return tuple((Kind.MAP, part.sections(), 0, 0) if isinstance(part, CharMap) else part for part in parts)


# DeBERTa-v3's pattern. The first of the two patterns has replaced the runs before single characters are replaced, and
# the second pattern does not match a blank.
SAME_AS = {r"\s{2,}|[\n\r\t]": (r"\s{2,}", "[\n\r\t]")}


def _parts(spec: dict[str, Any]) -> Iterator[Part]:
    kind = spec["type"]
    if kind == "Sequence":
        for inner in spec["normalizers"]:
            yield from _parts(inner)
    elif kind == "Replace" and (patterns := SAME_AS.get(spec["pattern"].get("Regex", ""))):
        for pattern in patterns:
            yield _replace({**spec, "pattern": {"Regex": pattern}})
    elif kind == "BertNormalizer":
        yield from _bert(spec)
    elif kind in ("NFC", "NFD", "NFKC", "NFKD"):
        yield characters.decomposition(f"{kind[:-1]}D")
        yield _order()
        if kind.endswith("C"):
            classes = blocks(characters.combining_classes())
            yield Kind.COMPOSE, (*classes, characters.compositions()), 0, 0
    elif kind in ("Lowercase", "StripAccents", "Nmt"):
        yield char_map(_library(spec))
    elif kind in OTHERS:
        yield OTHERS[kind](spec)
    else:
        raise NotCompiled(f"a normalizer {kind}")


def _bert(spec: dict[str, Any]) -> Iterator[Part]:
    lowercase = spec["lowercase"]
    strips = lowercase if spec["strip_accents"] is None else spec["strip_accents"]
    off = {
        "type": "BertNormalizer",
        "clean_text": False,
        "handle_chinese_chars": False,
        "strip_accents": False,
        "lowercase": False,
    }
    for switch in ("clean_text", "handle_chinese_chars"):
        if spec[switch]:
            yield char_map(_library({**off, switch: True}))
    if strips:
        # It decomposes, and drops nonspacing marks; probing characters one by one shows which marks these are.
        yield characters.decomposition("NFD")
        yield _order()
        yield char_map(_library({**off, "strip_accents": True}))
    if lowercase:
        yield char_map(_library({**off, "lowercase": True}))


def _library(spec: dict[str, Any]) -> Any:
    """Return a normalizer of the library, which can only read it as part of a whole tokenizer."""
    from tokenizers import Tokenizer

    empty = {"model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}, "added_tokens": [], "normalizer": spec}
    return Tokenizer.from_str(json.dumps({"version": "1.0", **empty})).normalizer


def _order() -> Step:
    return Kind.ORDER, blocks(characters.combining_classes()), 0, 0


def _strip(spec: dict[str, Any]) -> Part:
    from tokenizers import pre_tokenizers

    sides = spec["strip_left"] * 1 + spec["strip_right"] * 2
    spaces = 1 - characters.kept(pre_tokenizers.WhitespaceSplit())
    return Kind.STRIP, blocks(spaces), sides, 0


def _replace(spec: dict[str, Any]) -> Part:
    (form, pattern), content = next(iter(spec["pattern"].items())), spec["content"]
    if form == "String":
        return _replace_text(pattern, content)
    # One character, given by itself or by a class, and how often it occurs.
    found = re.fullmatch(r"([^\\.^$|?*+()\[\]{}]|\\[sdw]|\\[pP]\{\w+\}|\[[^\[\]\\&]+\])(?:(\+)|\{(\d+),\})?", pattern)
    if not found:
        raise NotCompiled(f"a normalizer that replaces {pattern!r}")
    character, plus, least = found.groups()
    if not plus and not least:
        return char_map(_library(spec))
    if least == "0":
        raise NotCompiled(f"a normalizer that replaces {pattern!r}")
    members = characters.matches(character)
    return Kind.REPLACE_RUN, (*blocks(members), content.encode()), 0, int(least or 1)


def _replace_text(pattern: str, content: str) -> Part:
    if not pattern:
        raise NotCompiled("a normalizer that replaces nothing")
    if len(pattern) > 1:
        return Kind.REPLACE, (pattern.encode(), content.encode()), 0, 0
    mapped = CharMap(texts=[content])
    mapped.codes[ord(pattern)] = -1
    return mapped


def _precompiled(spec: dict[str, Any]) -> Part:
    """Return SentencePiece's character table, split after its double array, and the grapheme classes of characters.

    The table begins with the size of the double array.
    """
    table = base64.b64decode(spec["precompiled_charsmap"] or "")
    end = 4 + 4 * (int.from_bytes(table[:4], "little") // 4)
    if end == 4:
        raise NotCompiled("an empty table of characters")
    return Kind.PRECOMPILED, (table[4:end], table[end:], *blocks(graphemes())), 0, 0


OTHERS: dict[str, Callable[[dict[str, Any]], Part]] = {
    "Strip": _strip,
    "Prepend": lambda spec: (Kind.PREPEND, (spec["prepend"].encode(),), 0, 0),
    "Replace": _replace,
    "Precompiled": _precompiled,
}
