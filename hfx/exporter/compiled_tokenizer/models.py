"""Compile WordPiece, byte-level BPE and Unigram for hfx/native/tokenizer's wordpiece.h, bpe.h and unigram.h."""

from __future__ import annotations

import json
from enum import IntEnum
from typing import Any

import numpy as np

from hfx.exporter.compiled_tokenizer.file import NONE, NotCompiled, Tag, Writer, hashed, trie
from hfx.python_backends.generation.detokenizer import BYTE_OF


class Kind(IntEnum):
    """The kinds of models, as in models.h."""

    WORDPIECE, BPE, UNIGRAM = range(1, 4)


def add_model(writer: Writer, tokenizer: Any, model: dict[str, Any]) -> None:
    """Add the model of a tokenizer.json, which `tokenizer` has read. Raises NotCompiled."""
    kind = model["type"]
    if kind == "WordPiece":
        step = _wordpiece(writer, model)
    elif kind == "BPE":
        step = _bpe(writer, tokenizer.model, model)
    elif kind == "Unigram":
        step = _unigram(writer, tokenizer, model)
    else:
        raise NotCompiled(f"a model {kind}")
    writer.add_steps(Tag.MODEL, [step])


def _wordpiece(writer: Writer, model: dict[str, Any]) -> tuple[int, int, int, int]:
    vocabulary = {token.encode(): number for token, number in model["vocab"].items() if token}
    if model["unk_token"] not in model["vocab"]:
        raise NotCompiled("a WordPiece model without its unknown token")
    most = min(int(model["max_input_chars_per_word"]), NONE)
    tables = trie(list(vocabulary), list(vocabulary.values()))
    section = writer.add(*tables, model["continuing_subword_prefix"].encode())
    return Kind.WORDPIECE, section, model["vocab"][model["unk_token"]], most


def _bpe(writer: Writer, library: Any, model: dict[str, Any]) -> tuple[int, int, int, int]:
    for setting in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(setting):
            raise NotCompiled(f"a BPE model with {setting}")
    vocabulary: dict[str, int] = model["vocab"]
    of_bytes = [vocabulary.get(character, NONE) for character in sorted(BYTE_OF, key=BYTE_OF.__getitem__)]
    unknown = NONE if model["unk_token"] is None else vocabulary.get(model["unk_token"], -1)
    if unknown < 0:
        raise NotCompiled("a BPE model without its unknown token")
    whole = _whole(library, vocabulary, bool(model.get("ignore_merges")))
    merges = _merges(vocabulary, model["merges"])
    section = writer.add(*trie(list(whole), list(whole.values())), merges, np.array(of_bytes, "<u4"))
    return Kind.BPE, section, bool(model.get("fuse_unk")) * 1, unknown


def _whole(library: Any, vocabulary: dict[str, int], ignores_merges: bool) -> dict[bytes, int]:
    """Return the pieces, as bytes, that the library makes one token of, and their ids."""
    found = {}
    for token, number in vocabulary.items():
        if not token or not all(character in BYTE_OF for character in token):
            continue
        if ignores_merges or [made.id for made in library.tokenize(token)] == [number]:
            found[bytes(map(BYTE_OF.__getitem__, token))] = number
    return found


def _merges(vocabulary: dict[str, int], merges: list[Any]) -> np.ndarray[Any, Any]:
    rows: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, merge in enumerate(merges):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        rows[vocabulary[left], vocabulary[right]] = rank, vocabulary[left + right]
    table = np.array([(*pair, *made) for pair, made in rows.items()], "<u4").reshape(-1, 4)
    with np.errstate(over="ignore"):
        hashes = (table[:, 0].astype("<u8") << np.uint64(32) | table[:, 1]) * np.uint64(0x9E3779B97F4A7C15)
    return hashed(table, hashes, 64, np.uint32(NONE))


def _unigram(writer: Writer, tokenizer: Any, model: dict[str, Any]) -> tuple[int, int, int, int]:
    """Add a Unigram model, with the scores as the library has read them.

    In one of eight scores, the last bit differs from that of Python's float.
    """
    if model.get("unk_id") is None:
        raise NotCompiled("a Unigram model without an unknown token")
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    ids = {piece.encode(): number for number, (piece, _) in enumerate(vocabulary)}
    pieces = [piece for piece in ids if piece]
    of_bytes = [ids.get(b"<0x%02X>" % byte, NONE) for byte in range(256)] if model.get("byte_fallback") else []
    tables = trie(pieces, [ids[piece] for piece in pieces])
    scores = np.array([score for _, score in vocabulary], "<f8")
    section = writer.add(*tables, scores, np.array(of_bytes, "<u4"))
    return Kind.UNIGRAM, section, model["unk_id"], max(map(len, pieces), default=0)
