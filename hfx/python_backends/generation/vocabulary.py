"""The bytes that a tokenizer's tokens add to a text, for grammars, which are read byte by byte."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .detokenizer import decoder_steps, token_bytes

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Decoders that give a token the same text wherever it stands, except for a space at the beginning of the first token.
_KINDS = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of each token; `unusable` tokens are not part of any text.

    `loses_space` says that a text lacks the space with which the bytes of its first token begin.
    """

    tokens: Sequence[bytes]
    unusable: Sequence[int]
    loses_space: bool


def read_vocabulary(tokenizer: Any, special: Callable[[int], bool], size: int) -> Vocabulary | None:
    """Return the first `size` tokens of a tokenizers.Tokenizer; None if its decoder does more than join their bytes.

    `special` tokens, and tokens that the tokenizer lacks, are unusable.
    """
    steps = decoder_steps(json.loads(tokenizer.to_str())["decoder"])
    loses_space = any(map(_strips, steps))
    names: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    is_byte_level = [step["type"] for step in steps] == ["ByteLevel"]
    if not is_byte_level and not (steps and all(map(_is_readable, steps))):
        return None
    read = token_bytes if is_byte_level else _reader(steps)
    is_metaspace = any(step["type"] == "Metaspace" for step in steps)
    tokens = [b""] * size
    for name, token in names.items():
        if token < size and not special(token):
            text = read(name)
            # Metaspace drops all spaces of a first token; only one at its beginning can be allowed for (`loses_space`).
            tokens[token] = b"" if is_metaspace and b" " in text[1:] else text
    return Vocabulary(tokens, [token for token, text in enumerate(tokens) if not text], loses_space)


def _strips(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return bool(step["type"] == "Strip" and step["start"])


def _is_readable(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Strip":
        return bool(step["content"] == " " and step["start"] <= 1 and not step["stop"])
    return step["type"] in _KINDS and (step["type"] != "Replace" or "String" in step["pattern"])


def _reader(steps: Sequence[Mapping[str, Any]]) -> Callable[[str], bytes]:
    has_bytes = any(step["type"] == "ByteFallback" for step in steps)
    replaced = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]
    replaced += [(step["replacement"], " ") for step in steps if step["type"] == "Metaspace"]

    def read(name: str) -> bytes:
        byte = _BYTE.fullmatch(name) if has_bytes else None
        if byte is not None:
            return bytes.fromhex(byte[1])
        for old, new in replaced:
            name = name.replace(old, new)
        return name.encode()

    return read
