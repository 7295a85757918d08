"""ColBERT checkpoints of PyLate and of Stanford's library: how their files say that queries and documents are read.

Text becomes tokens as in PyLate 1.6, which opens either kind: a marker comes behind the first token, queries are filled
with mask tokens, and documents have no vectors of punctuation.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hfx import names
from hfx.errors import CheckpointCorrupt, CheckpointUnsupported
from hfx.exporter.config_file import AGAIN, read_json, read_optional_json
from hfx.exporter.encoder.pooling import Layer, Pooling
from hfx.exporter.encoder.sentence_transformers import (
    EMBEDDERS_PROMPTS,
    LIBRARY_CONFIG,
    MODULES,
    TOKEN_EMBEDDINGS,
    TOKEN_MASK,
    read_layer,
    read_modules,
)
from hfx.exporter.source import Checkpoint
from hfx.exporter.tokenizer import vocab_size
from hfx.python_backends.settings import DOCUMENT, QUERY, Role

PYLATE = "pylate."  # what the types of its modules begin with
PYLATE_DENSE = "pylate.models.Dense.Dense"
STANFORD, METADATA = "HF_ColBERT", "artifact.metadata"
# PyLate's names of fields -> Stanford's, and its defaults.
STANFORD_FIELDS = {
    "query_prefix": ("query_token_id", "[unused0]"),
    "document_prefix": ("doc_token_id", "[unused1]"),
    "query_length": ("query_maxlen", 32),
    "document_length": ("doc_maxlen", 220),
    "attend_to_expansion_tokens": ("attend_to_mask_tokens", False),
    "punctuation": ("mask_punctuation", True),
    "width": ("dim", 128),
}
KINDS = {str: "a text", int: "a whole number of at least 16", bool: "true or false", tuple: "a list of words"}
SHORTEST = 16  # tokens of a query or document, and numbers of a vector
FEWEST = 3  # tokens of an empty text: two special ones, and a marker between them


@dataclass(frozen=True)
class LateInteraction:
    """How texts are read, with PyLate's names and defaults. An empty prefix is none."""

    query_prefix: str = "[Q] "
    document_prefix: str = "[D] "
    query_length: int = 32
    document_length: int = 180
    do_query_expansion: bool = True
    attend_to_expansion_tokens: bool = False
    skiplist_words: tuple[str, ...] = tuple(string.punctuation)

    def sees_nothing(self, reach: int) -> bool:
        """Whether the last token may see none of an empty query, where tokens see `reach` others on each side."""
        is_blind = self.do_query_expansion and not self.attend_to_expansion_tokens
        return is_blind and self.query_length > reach + FEWEST

    def role(self, name: str, checkpoint: Checkpoint, tokenizer: Any) -> Role:
        """A role with the ids of `tokenizer`. Raises CheckpointCorrupt, CheckpointUnsupported for missing tokens."""
        known, embeddings = tokenizer.get_vocab(), vocab_size(checkpoint)
        prefix = self.query_prefix if name == QUERY else self.document_prefix
        marker = known.get(prefix) if prefix else None
        if prefix and not (marker is not None and marker < embeddings):
            raise CheckpointCorrupt(
                f"The marker {prefix[:50]!r} of each {name} is no token of the model in {checkpoint.folder}.",
                "Save it again by the library that it was trained with, which adds its markers to the tokenizer.",
            )
        if name == DOCUMENT:  # as in both libraries, an unknown word is the unknown token
            skipped = {known.get(word, tokenizer.unk_token_id) for word in self.skiplist_words} - {None}
            return Role(self.document_length, marker, skipped=tuple(sorted(skipped)))
        if not self.do_query_expansion:
            return Role(self.query_length, marker)
        filler = tokenizer.eos_token_id if tokenizer.mask_token_id is None else tokenizer.mask_token_id
        if filler is None or filler >= embeddings or tokenizer.padding_side == "left":
            raise CheckpointUnsupported(
                f"Queries for {checkpoint.folder} are filled with mask tokens, which its tokenizer has not, or on the "
                "left.",
                "hfx expands queries on the right, with the mask token or the end of a text.",
            )
        return Role(self.query_length, marker, self.query_length, filler, self.attend_to_expansion_tokens)


FIELDS = fields(LateInteraction)


def is_late_interaction(folder: Path) -> bool:
    """Whether the checkpoint in `folder` is a ColBERT of PyLate's or Stanford's library."""
    types = [kind for kind, _ in read_modules(folder)] if _has_modules(folder) else []
    stated = read_optional_json(folder / LIBRARY_CONFIG).keys() & {each.name for each in FIELDS}
    is_pylate = TOKEN_MASK not in types and (bool(stated) or any(kind.startswith(PYLATE) for kind in types))
    return is_pylate if types else _is_stanford(folder)


def _is_stanford(folder: Path) -> bool:
    architectures = read_optional_json(folder / "config.json").get("architectures") or []
    return STANFORD in architectures and not _has_modules(folder)


def _has_modules(folder: Path) -> bool:
    """Whether modules.json is of the transformer in `folder` itself, not of a copy in one of its folders."""
    return (folder / MODULES).is_file() and [path for _, path in read_modules(folder)][:1] == [""]


def read_late_interaction(folder: Path) -> LateInteraction:
    """How the ColBERT in `folder` reads queries and documents. Raises CheckpointCorrupt."""
    if _is_stanford(folder):
        stated = _metadata(folder)
        punctuation = LateInteraction.skiplist_words if stated["punctuation"] else ()
        return LateInteraction(**{name: stated[name] for name in [*stated][:-2]}, skiplist_words=punctuation)
    file = folder / LIBRARY_CONFIG
    stated = read_optional_json(file)
    return LateInteraction(**{each.name: _checked(file, each.name, stated, each.default) for each in FIELDS})


def _metadata(folder: Path) -> dict[str, Any]:
    file = folder / METADATA
    if not file.is_file():
        raise CheckpointCorrupt(
            f"{folder} has no {METADATA}, which says how its queries and documents are read.",
            "Download it from where the weights are from.",
        )
    stated = read_json(file)
    return {name: _checked(file, own, stated, default) for name, (own, default) in STANFORD_FIELDS.items()}


def _checked(file: Path, name: str, stated: Mapping[str, Any], default: Any) -> Any:
    """The value of a field; `default`, whose type it has, where it is missing or null. Raises CheckpointCorrupt."""
    value = default if stated.get(name) is None else stated[name]
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        value = tuple(value)
    if type(value) is not type(default) or (type(value) is int and value < SHORTEST):
        raise CheckpointCorrupt(f"{name} in {file} is {str(value)[:50]!r}, not {KINDS[type(default)]}.", AGAIN)
    return value


def read_token_layers(folder: Path, hidden: int) -> Pooling:
    """What the ColBERT in `folder` does with each token's vector of `hidden` numbers; its length is 1 in the end."""
    if _is_stanford(folder):
        layers = [Layer("Dense", "", hidden, _metadata(folder)["width"], bias=False, activation="Identity")]
    else:
        modules = [("Dense" if kind == PYLATE_DENSE else kind, path) for kind, path in read_modules(folder)]
        kinds = [kind for kind, _ in modules]
        if kinds[:2] != ["Transformer", "Dense"] or {*kinds[2:]} - {"Dense", "Normalize"}:
            raise CheckpointUnsupported(
                f"{folder / MODULES} lists the modules {', '.join(kinds)}, which hfx can't export.",
                "Supported, of PyLate: Transformer, one or more Dense, and Normalize.",
            )
        layers = [read_layer(folder, *module, TOKEN_EMBEDDINGS, TOKEN_EMBEDDINGS) for module in modules[1:]]
    return Pooling((), (*layers, Layer("Normalize")), tokens=True, by_role=True)


def role_ids(
    late: LateInteraction, checkpoint: Checkpoint, tokenizer: Any, request: dict[str, Any], max_length: int
) -> list[list[int]]:
    """The tokens of a text, by transformers' tokenizer."""
    name = QUERY if request.get(names.PROMPT_NAME) == QUERY else DOCUMENT
    role = late.role(name, checkpoint, tokenizer)
    marker = [] if role.marker is None else [role.marker]
    ids = tokenizer(request[names.TEXT_INPUT], truncation=True, max_length=role.length - len(marker))["input_ids"]
    ids[1:1] = marker
    return [ids + [role.filler] * (role.least - len(ids))]


def role_settings(late: LateInteraction, checkpoint: Checkpoint, tokenizer: Any) -> dict[str, Any]:
    """For settings.json of the tokenizing step."""
    return {name: asdict(late.role(name, checkpoint, tokenizer)) for name in EMBEDDERS_PROMPTS}
