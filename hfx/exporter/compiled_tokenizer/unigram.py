"""A Unigram model as hfx/native/tokenizer/unigram.h reads it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from hfx.exporter.compiled_tokenizer.file import NONE, NotCompiled, Writer, trie


def add_unigram(writer: Writer, tokenizer: Any, model: dict[str, Any]) -> tuple[int, int, int]:
    """Add the pieces and scores of a Unigram `model`: section, flags and value of its step. Raises NotCompiled.

    The scores are those that the library has read: in one of eight, its last bit isn't that of Python's float.
    """
    if model.get("unk_id") is None:
        raise NotCompiled("a Unigram model without an unknown token")
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    ids = {piece.encode(): number for number, (piece, _) in enumerate(vocabulary)}
    pieces = [piece for piece in ids if piece]
    of_bytes = [ids.get(b"<0x%02X>" % byte, NONE) for byte in range(256)] if model.get("byte_fallback") else []
    tables = trie(pieces, [ids[piece] for piece in pieces])
    scores = np.array([score for _, score in vocabulary], "<f8")
    return writer.add(*tables, scores, np.array(of_bytes, "<u4")), model["unk_id"], max(map(len, pieces), default=0)
