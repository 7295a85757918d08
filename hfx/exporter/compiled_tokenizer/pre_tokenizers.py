"""Compile a tokenizer's pre-tokenizer to the steps of hfx/native/tokenizer/pre_tokenizer.h."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import numpy as np

from hfx.exporter.compiled_tokenizer.characters import kept, matches
from hfx.exporter.compiled_tokenizer.file import NotCompiled, Tag, Writer, blocks

MOST_STEPS = 8
SPACE, LETTER, NUMBER = 1, 2, 3  # the classes of gpt2_pattern.h


class Kind(IntEnum):
    """The kinds of steps of pre_tokenizer.h."""

    BY_CLASS = 1
    BYTE_LEVEL, METASPACE = range(2, 4)


class Class(IntEnum):
    """The classes of characters in steps of the kind BY_CLASS."""

    TOGETHER, DROPPED, ALONE, TOO = range(4)


def add_pre_tokenizer(writer: Writer, spec: dict[str, Any] | None, byte_level: bool) -> None:
    """Add the pre-tokenizer of a tokenizer.json, whose last step is ByteLevel if `byte_level`. Raises NotCompiled."""
    specs = list(_flat(spec)) if spec else []
    kinds = [each["type"] for each in specs]
    if ("ByteLevel" in kinds[:-1]) or (kinds[-1:] == ["ByteLevel"]) != byte_level:
        raise NotCompiled("a pre-tokenizer ByteLevel with another model, or followed by others")
    if any(each.get("prepend_scheme") == "first" for each in specs[1:]):
        raise NotCompiled("a pre-tokenizer Metaspace of the first piece behind others")
    if len(specs) > MOST_STEPS:
        raise NotCompiled(f"a pre-tokenizer of {len(specs)} steps")
    writer.add_steps(Tag.PRE_TOKENIZER, [step for each in specs for step in _steps(writer, each)])


def _flat(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if spec["type"] != "Sequence":
        yield spec
        return
    for inner in spec["pretokenizers"]:
        yield from _flat(inner)


def _steps(writer: Writer, spec: dict[str, Any]) -> Iterator[tuple[int, int, int, int]]:
    kind = spec["type"]
    if kind == "ByteLevel":
        flags = spec["add_prefix_space"] * 1 + spec.get("use_regex", True) * 2
        yield Kind.BYTE_LEVEL, writer.add(*blocks(pattern_classes())), flags, 0
    elif kind == "Metaspace":
        scheme = {"never": 0, "first": 1, "always": 2}[spec["prepend_scheme"]]
        yield Kind.METASPACE, writer.add(spec["replacement"].encode()), scheme + 4 * spec["split"], 0
    else:
        yield Kind.BY_CLASS, writer.add(*blocks(_classes(spec))), 0, 0


def _classes(spec: dict[str, Any]) -> np.ndarray[Any, Any]:
    kind = spec["type"]
    if kind == "BertPreTokenizer":
        return np.where(spaces(), Class.DROPPED, np.where(_punctuation(), Class.ALONE, Class.TOGETHER)).astype(np.uint8)
    if kind == "WhitespaceSplit":
        return np.where(spaces(), Class.DROPPED, Class.TOGETHER).astype(np.uint8)
    if kind == "Whitespace":
        return np.choose(words(), [Class.DROPPED, Class.TOGETHER, Class.TOO]).astype(np.uint8)
    if kind == "Punctuation":
        return np.where(_punctuation(), _behavior(spec), Class.TOGETHER).astype(np.uint8)
    if kind == "Digits":
        from tokenizers import pre_tokenizers

        digit = Class.ALONE if spec["individual_digits"] else Class.TOO
        return np.where(kept(pre_tokenizers.Digits(), joins="1") == 1, digit, Class.TOGETHER).astype(np.uint8)
    raise NotCompiled(f"a pre-tokenizer {kind}")


def _behavior(spec: dict[str, Any]) -> Class:
    behaviors = {"Isolated": Class.ALONE, "Removed": Class.DROPPED, "Contiguous": Class.TOO}
    behavior = spec.get("behavior", "Isolated")
    if behavior not in behaviors:
        raise NotCompiled(f"a pre-tokenizer Punctuation that is {behavior}")
    return behaviors[behavior]


@functools.cache
def spaces() -> np.ndarray[Any, Any]:
    """Return 1 for each character that is white space in Rust, 0 for the others."""
    from tokenizers import pre_tokenizers

    return 1 - kept(pre_tokenizers.WhitespaceSplit())


@functools.cache
def words() -> np.ndarray[Any, Any]:
    r"""Return the class of each character in Rust's regular expressions: 0 for white space (\s), 1 for \w, else 2."""
    from tokenizers import pre_tokenizers

    return kept(pre_tokenizers.Whitespace(), joins="a")


@functools.cache
def _punctuation() -> np.ndarray[Any, Any]:
    from tokenizers import pre_tokenizers

    return 1 - kept(pre_tokenizers.Punctuation("removed"))


@functools.cache
def pattern_classes() -> np.ndarray[Any, Any]:
    """Return the class of each character in the patterns of byte-level tokenizers: SPACE, LETTER, NUMBER or 0."""
    found = np.zeros(len(matches(r"\s")), np.uint8)
    for pattern, value in ((r"\s", SPACE), (r"\p{L}", LETTER), (r"\p{N}", NUMBER)):
        found[matches(pattern) != 0] = value
    return found
