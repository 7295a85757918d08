"""ColBERT checkpoints of PyLate and of Stanford's library: how their files say that queries and documents are read.

Text becomes tokens as in PyLate 1.6, which opens either kind: a marker comes behind the first token, queries are filled
with mask tokens, and documents have no vectors of punctuation.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
    read_size,
)
from hfx.exporter.source import Checkpoint
from hfx.exporter.tokenizer import vocab_size
from hfx.python_backends.settings import Role

QUERY, DOCUMENT = EMBEDDERS_PROMPTS
PYLATE = "pylate."  # what the types of its modules begin with
PYLATE_DENSE = "pylate.models.Dense.Dense"
PYLATE_FIELDS = {"query_prefix", "document_prefix", "do_query_expansion", "attend_to_expansion_tokens"}
STANFORD = "HF_ColBERT"
METADATA = "artifact.metadata"
STANFORD_WIDTH = 128
SHORTEST = 16  # tokens of a query or document
FEWEST = 3  # tokens of an empty text: two special ones, and a marker between them


@dataclass(frozen=True)
class Reading:
    """How texts of a role are read; as Role, with tokens in the place of ids. Without a `marker` it is empty."""

    marker: str
    length: int
    expands: bool = False
    attends: bool = False
    skipped: tuple[str, ...] = ()

    def sees_nothing(self, reach: int) -> bool:
        """Whether the last token may see none of an empty text, where tokens see `reach` others on each side."""
        return self.expands and not self.attends and self.length > reach + FEWEST

    def role(self, name: str, checkpoint: Checkpoint, tokenizer: Any) -> Role:
        """With the ids of `tokenizer`. Raises CheckpointCorrupt where the model has no embedding of a token."""
        known, folder, embeddings = tokenizer.get_vocab(), checkpoint.folder, vocab_size(checkpoint)
        marker = known.get(self.marker) if self.marker else None
        if self.marker and not (marker is not None and marker < embeddings):
            raise CheckpointCorrupt(
                f"The marker {self.marker[:50]!r} of each {name} is no token of the model in {folder}.",
                "Save it again by the library that it was trained with, which adds its markers to the tokenizer.",
            )
        filler = tokenizer.eos_token_id if tokenizer.mask_token_id is None else tokenizer.mask_token_id
        if self.expands and (filler is None or filler >= embeddings or tokenizer.padding_side == "left"):
            raise CheckpointUnsupported(
                f"Queries for {folder} are filled with mask tokens, which its tokenizer lacks, or has on the left.",
                "hfx expands queries on the right, with the mask token or the end of a text.",
            )
        # As in both libraries, an unknown word is the unknown token.
        ids = [known.get(word, tokenizer.unk_token_id) for word in self.skipped]
        skipped = sorted({token for token in ids if token is not None})
        least, filler = (self.length, filler) if self.expands else (0, 0)
        return Role(self.length, marker, least, filler, self.attends, tuple(skipped))


Readings = Mapping[str, Reading]


def is_late_interaction(folder: Path) -> bool:
    """Whether the checkpoint in `folder` is a ColBERT of PyLate's or Stanford's library."""
    return _is_pylate(folder) or _is_stanford(folder)


def _is_pylate(folder: Path) -> bool:
    types = [kind for kind, _ in read_modules(folder)] if _has_modules(folder) else []
    config = read_optional_json(folder / LIBRARY_CONFIG)
    is_marked = bool(PYLATE_FIELDS & config.keys()) or any(kind.startswith(PYLATE) for kind in types)
    return bool(types) and is_marked and TOKEN_MASK not in types


def _is_stanford(folder: Path) -> bool:
    architectures = read_optional_json(folder / "config.json").get("architectures") or []
    return STANFORD in architectures and not _has_modules(folder)


def _has_modules(folder: Path) -> bool:
    """Whether modules.json is of the transformer in `folder` itself, not of a copy in one of its folders."""
    return (folder / MODULES).is_file() and [path for _, path in read_modules(folder)][:1] == [""]


def read_readings(folder: Path) -> dict[str, Reading]:
    """How the ColBERT in `folder` reads queries and documents. Raises CheckpointCorrupt, CheckpointUnsupported."""
    if _is_stanford(folder):
        return _of_stanford(folder)
    file = folder / LIBRARY_CONFIG
    fields = _Fields(file, read_optional_json(file))
    skipped = fields.get("skiplist_words", list, [*string.punctuation])
    if not all(isinstance(word, str) for word in skipped):
        raise CheckpointCorrupt(f"skiplist_words in {file} are no texts.", AGAIN)
    expands = fields.get("do_query_expansion", bool, True)
    attends = expands and fields.get("attend_to_expansion_tokens", bool, False)
    return {
        QUERY: Reading(fields.get("query_prefix", str, "[Q] "), fields.length("query_length", 32), expands, attends),
        DOCUMENT: Reading(
            fields.get("document_prefix", str, "[D] "), fields.length("document_length", 180), skipped=tuple(skipped)
        ),
    }


def _metadata(folder: Path) -> _Fields:
    file = folder / METADATA
    if not file.is_file():
        raise CheckpointCorrupt(
            f"{folder} has no {METADATA}, which says how its queries and documents are read.",
            "Download it from where the weights are from.",
        )
    return _Fields(file, read_json(file))


def _of_stanford(folder: Path) -> dict[str, Reading]:
    fields = _metadata(folder)
    skipped = tuple(string.punctuation) if fields.get("mask_punctuation", bool, True) else ()
    attends = fields.get("attend_to_mask_tokens", bool, False)
    query, document = fields.get("query_token_id", str, "[unused0]"), fields.get("doc_token_id", str, "[unused1]")
    return {
        QUERY: Reading(query, fields.length("query_maxlen", 32), True, attends),
        DOCUMENT: Reading(document, fields.length("doc_maxlen", 220), skipped=skipped),
    }


def read_token_layers(folder: Path, hidden: int) -> Pooling:
    """What the ColBERT in `folder` does with each token's vector of `hidden` numbers; its length is 1 in the end."""
    if _is_stanford(folder):
        fields = _metadata(folder)
        width = read_size(fields.file, {"dim": STANFORD_WIDTH, **fields.values}, "dim")
        layers = [Layer("Dense", "", hidden, width, bias=False, activation="Identity")]
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
    readings: Readings, checkpoint: Checkpoint, tokenizer: Any, request: dict[str, Any], max_length: int
) -> list[list[int]]:
    """The tokens of a text, by transformers' tokenizer."""
    name = QUERY if request.get(names.PROMPT_NAME) == QUERY else DOCUMENT
    role = readings[name].role(name, checkpoint, tokenizer)
    marker = [] if role.marker is None else [role.marker]
    ids = tokenizer(request[names.TEXT_INPUT], truncation=True, max_length=role.length - len(marker))["input_ids"]
    ids[1:1] = marker
    return [ids + [role.filler] * (role.least - len(ids))]


def role_settings(readings: Readings, checkpoint: Checkpoint, tokenizer: Any) -> dict[str, Any]:
    """For settings.json of the tokenizing step."""
    return {name: asdict(each.role(name, checkpoint, tokenizer)) for name, each in readings.items()}


@dataclass(frozen=True)
class _Fields:
    """The fields of a JSON file."""

    file: Path
    values: Mapping[str, Any]

    def get(self, name: str, kind: type, default: Any) -> Any:
        """A value of `kind`; `default` where it is missing or null. Raises CheckpointCorrupt."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, kind):
            raise CheckpointCorrupt(f"{name} in {self.file} is {str(value)[:50]!r}, no {kind.__name__}.", AGAIN)
        return default if value is None else value

    def length(self, name: str, default: int) -> int:
        """A number of tokens. Raises CheckpointCorrupt, or CheckpointUnsupported for too few."""
        value = self.values.get(name)
        size = default if value is None else read_size(self.file, self.values, name)
        if size < SHORTEST:
            raise CheckpointUnsupported(
                f"{name} in {self.file} is {size}; hfx exports models that read {SHORTEST} tokens or more.",
                "Export with a larger one.",
            )
        return size
