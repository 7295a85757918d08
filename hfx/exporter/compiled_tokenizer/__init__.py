"""Compile a tokenizer.json of Hugging Face's tokenizers library for hfx/native/tokenizer."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from hfx.exporter.compiled_tokenizer.file import NotCompiled, Tag, Writer, blocks, trie
from hfx.exporter.compiled_tokenizer.models import add_model
from hfx.exporter.compiled_tokenizer.normalizers import add_normalizer
from hfx.exporter.compiled_tokenizer.pre_tokenizers import add_pre_tokenizer, words

__all__ = ["NotCompiled", "compile_tokenizer"]

MOST_TOKENS = 1 << 22
PROCESSORS = {"TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel", "Sequence"}
LSTRIP, RSTRIP, SINGLE_WORD = 1, 2, 4  # flags of added tokens
WORD, SPACE = 1, 2  # classes of the characters beside added tokens


def compile_tokenizer(tokenizer_json: Path) -> bytes:
    """Return the compiled form of a tokenizer.json, without its truncation and padding, which are left to callers.

    Raises NotCompiled, whose text says what the compiled form lacks.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_json))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    spec = json.loads(Path(tokenizer_json).read_text(encoding="utf-8"))
    model = {"type": type(tokenizer.model).__name__, **spec["model"]}
    writer = Writer()
    _add_tokens(writer, tokenizer)
    _add_templates(writer, tokenizer, spec.get("post_processor"))
    _add_added_tokens(writer, tokenizer)
    add_normalizer(writer, spec.get("normalizer"))
    add_pre_tokenizer(writer, spec.get("pre_tokenizer"), model["type"] == "BPE")
    add_model(writer, tokenizer, model)
    return writer.content()


def _add_tokens(writer: Writer, tokenizer: Any) -> None:
    count = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if count > MOST_TOKENS:
        raise NotCompiled(f"{count} tokens")
    texts = [(tokenizer.id_to_token(number) or "").encode() for number in range(count)]
    writer.add(np.cumsum([len(text) for text in texts]).astype("<u4"), b"".join(texts), tag=Tag.TOKEN_ENDS)


def _add_templates(writer: Writer, tokenizer: Any, processor: dict[str, Any] | None) -> None:
    processors = processor["processors"] if processor and processor["type"] == "Sequence" else [processor]
    for each in processors:
        if each and each["type"] not in PROCESSORS:
            raise NotCompiled(f"a post-processor {each['type']}")
    text = _a_text(tokenizer)
    writer.add(_template(tokenizer, text), _template(tokenizer, text, text), tag=Tag.TEMPLATES)


def _a_text(tokenizer: Any) -> str:
    """Return a text that has tokens."""
    for text in ("a", "1", *tokenizer.get_vocab(with_added_tokens=True)):
        if tokenizer.encode(text, add_special_tokens=False).ids:
            return str(text)
    raise NotCompiled("no text that has tokens")


def _template(tokenizer: Any, *texts: str) -> np.ndarray[Any, Any]:
    """Return the special tokens that the library puts around one or two texts, and the types of all tokens."""
    encoding = tokenizer.encode(*texts)
    rows = zip(encoding.sequence_ids, encoding.ids, encoding.type_ids, strict=True)
    groups = [(sequence, list(group)) for sequence, group in groupby(rows, key=lambda row: row[0])]
    own = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    found = [[row[1] for row in group] for sequence, group in groups if sequence is not None]
    types = [{row[2] for row in group} for sequence, group in groups if sequence is not None]
    if found != own or [sequence for sequence, _ in groups if sequence is not None] != [0, 1][: len(texts)]:
        raise NotCompiled("a post-processor that does more than put special tokens around texts")
    if any(len(each) != 1 for each in types):
        raise NotCompiled("a post-processor with several types in one text")
    special: list[list[Any]] = [[], [], []]
    place = 0
    for sequence, group in groups:
        place = place if sequence is None else 1 if sequence + 1 < len(texts) else 2
        if sequence is None:
            special[place] = group
    values = [*(next(iter(each)) for each in types), *[0] * (2 - len(texts)), *map(len, special)]
    for group in special:
        values += [*(row[1] for row in group), *(row[2] for row in group)]
    return np.array(values, "<i4")


def _add_added_tokens(writer: Writer, tokenizer: Any) -> None:
    tokens = tokenizer.get_added_tokens_decoder()
    if not tokens:
        return
    writer.add(*blocks(np.choose(words(), [SPACE, WORD, 0]).astype(np.uint8)), tag=Tag.WORD_CLASSES)
    for tag, normalized in ((Tag.RAW_ADDED, False), (Tag.ADDED, True)):
        chosen = {number: token for number, token in tokens.items() if token.normalized == normalized}
        if chosen:
            _add_trie(writer, tokenizer, tag, chosen)


def _add_trie(writer: Writer, tokenizer: Any, tag: Tag, tokens: dict[int, Any]) -> None:
    texts = [token.content for token in tokens.values()]
    if tag is Tag.ADDED and tokenizer.normalizer is not None:
        texts = [tokenizer.normalizer.normalize_str(text) for text in texts]
    if "" in texts or len(set(texts)) < len(texts):
        raise NotCompiled("added tokens that are equal or empty")
    rows = [
        (number, LSTRIP * token.lstrip + RSTRIP * token.rstrip + SINGLE_WORD * token.single_word)
        for number, token in tokens.items()
    ]
    tables = trie([text.encode() for text in texts], range(len(texts)))
    writer.add(np.array(rows, "<u4"), *tables, tag=tag)
