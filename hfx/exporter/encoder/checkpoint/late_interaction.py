"""ColBERT checkpoints of PyLate, Stanford's library and sentence-transformers: how queries and documents are read.

Checkpoints of the first two are tokenized as in PyLate 1.6, which opens both: a marker follows the first token, queries
are filled up with mask tokens, and punctuation in documents has no vectors. Checkpoints of sentence-transformers are
read as by its MultiVectorEncoder 6.2, whose markers are prompts.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hfx import names
from hfx.errors import CheckpointCorrupt, CheckpointUnsupported
from hfx.exporter.config_file import AGAIN, read_json, read_optional_json, tokenizer_limit
from hfx.exporter.encoder.checkpoint.module_list import (
    MODULES,
    STANFORD,
    module_kinds,
    query_table,
    read_modules,
    unsupported_modules,
)
from hfx.exporter.encoder.checkpoint.pooling import Layer, Pooling, TokenLayers
from hfx.exporter.encoder.checkpoint.sentence_transformers import (
    EMBEDDERS_PROMPTS,
    LAYERS,
    LIBRARY_CONFIG,
    TEXT_METHOD,
    TOKEN_EMBEDDINGS,
    read_layer,
    refuse_messages,
    refuse_prepared_texts,
    transformer_config,
)
from hfx.exporter.source import Checkpoint
from hfx.exporter.tokenizer import load_tokenizer, vocab_size
from hfx.python_backends.settings import DOCUMENT, QUERY, Role

PYLATE = "pylate."  # the types of PyLate's modules begin with this
PYLATE_DENSE = "pylate.models.Dense.Dense"
PYLATE_FIELDS: dict[str, Any] = {
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 32,
    "document_length": 180,
    "do_query_expansion": True,
    "attend_to_expansion_tokens": False,
    "skiplist_words": tuple(string.punctuation),
}
METADATA = "artifact.metadata"
# PyLate's names of fields -> Stanford's names and defaults.
STANFORD_FIELDS = {
    "query_prefix": ("query_token_id", "[unused0]"),
    "document_prefix": ("doc_token_id", "[unused1]"),
    "query_length": ("query_maxlen", 32),
    "document_length": ("doc_maxlen", 220),
    "attend_to_expansion_tokens": ("attend_to_mask_tokens", False),
    "punctuation": ("mask_punctuation", True),
    "width": ("dim", 128),
}
EXPANSION, LEAST, LENGTHS = "query_expansion", "length", ("query_length", "document_length")
STRATEGIES = ("fixed", "min")
TOKEN_MASK = "MultiVectorMask"
KINDS = {str: "a text", int: "a whole number of at least 16", bool: "true or false", tuple: "a list of words"}
SHORTEST = 16  # tokens of a query or document, and numbers of a vector


@dataclass(frozen=True)
class Reading:
    """How queries, or documents, are read according to the files.

    A text has at most `length` tokens (0: as many as the model reads). The `marker`, if there is one, follows the first
    token. A text with fewer than `least` tokens is filled up with the token `filler` (empty: the mask token, or the end
    token if there is no mask token). If `attends` is true, the text's tokens attend to the filler. Words in `skipped`
    get no vector. If such a word is not a token of the vocabulary, it stands for the unknown token if `skips_unknown`
    is true, and is ignored otherwise. If `looks_up` is true, the vector has one number for each token of the
    vocabulary, and each token of the text sets its own number.
    """

    length: int
    marker: str = ""
    least: int = 0
    filler: str = ""
    attends: bool = False
    skipped: tuple[str, ...] = ()
    skips_unknown: bool = False
    looks_up: bool = False


@dataclass(frozen=True)
class LateInteraction:
    """How queries and documents are read."""

    query: Reading
    document: Reading

    @property
    def longest(self) -> int:
        """The number of tokens of the longest text that the net reads."""
        return max(self.query.length, self.query.least, self.document.length)

    def sees_nothing(self, reach: int) -> bool:
        """Return whether the last filler token of an empty query attends to no token at all.

        A token attends to `reach` others on each side, but to fillers only if the query `attends` to them.
        """
        fewest = 2 + bool(self.query.marker)
        return not self.query.attends and self.query.least > reach + fewest

    def role(self, name: str, checkpoint: Checkpoint, tokenizer: Any) -> Role:
        """Return how texts of the role `name` (query or document) are read, with ids of `tokenizer` in place of words.

        Raises CheckpointCorrupt if the marker is no token, and CheckpointUnsupported if queries can't be filled.
        """
        known, embeddings = tokenizer.get_vocab(), vocab_size(checkpoint)
        reading = self.query if name == QUERY else self.document
        marker = known.get(reading.marker) if reading.marker else None
        if reading.marker and not (marker is not None and marker < embeddings):
            raise CheckpointCorrupt(
                f"The marker {reading.marker[:50]!r} of each {name} is no token of the model in {checkpoint.folder}.",
                "Save it again by the library that it was trained with, which adds its markers to the tokenizer.",
            )
        unknown = tokenizer.unk_token_id if reading.skips_unknown else None
        skipped = {known.get(word, unknown) for word in reading.skipped} - {None}
        role = Role(reading.length, marker, skipped=tuple(sorted(skipped)), looks_up=reading.looks_up)
        if not reading.least:
            return role
        filler = tokenizer.eos_token_id if tokenizer.mask_token_id is None else tokenizer.mask_token_id
        filler = known.get(reading.filler) if reading.filler else filler
        is_left = tokenizer.padding_side == "left"
        if is_left or filler is None or filler >= embeddings or filler in skipped:
            kind = f"{reading.filler[:50] or 'mask'} tokens, which have no {'vectors' if filler in skipped else 'id'}"
            raise CheckpointUnsupported(
                f"Queries for {checkpoint.folder} are filled {'on the left' if is_left else f'with {kind}'}.",
                "hfx expands queries on the right, with a token of the model that has vectors.",
            )
        return replace(role, least=reading.least, filler=filler, attends=reading.attends)


def is_late_interaction(folder: Path) -> bool:
    """Return whether the checkpoint in `folder` is a ColBERT of any of the three libraries."""
    if not _has_modules(folder):
        return _is_stanford(folder)
    kinds = module_kinds(folder)
    return TOKEN_MASK in kinds or bool(_stated(folder)) or any(kind.startswith(PYLATE) for kind in kinds)


def _stated(folder: Path) -> list[str]:
    """Return PyLate's fields that the checkpoint has."""
    return sorted(read_optional_json(folder / LIBRARY_CONFIG).keys() & PYLATE_FIELDS)


def _is_stanford(folder: Path) -> bool:
    architectures = read_optional_json(folder / "config.json").get("architectures") or []
    return STANFORD in architectures and not _has_modules(folder)


def _has_modules(folder: Path) -> bool:
    """Return whether modules.json is about the transformer in `folder` itself, not about a copy in a subfolder."""
    return [path for _, path in read_modules(folder)][:1] == [""]


def _masks(folder: Path) -> list[str]:
    """Return the paths of sentence-transformers' modules that say which tokens have vectors."""
    return [path for kind, path in read_modules(folder) if kind == TOKEN_MASK] if _has_modules(folder) else []


def read_late_interaction(folder: Path) -> LateInteraction:
    """Return how the ColBERT, or the Router, in `folder` reads queries and documents.

    Raises CheckpointCorrupt and CheckpointUnsupported.
    """
    if table := query_table(folder):
        return LateInteraction(Reading(tokenizer_limit(folder / table) or 0, looks_up=True), Reading(0))
    if masks := _masks(folder):
        return _of_sentence_transformers(folder, folder / masks[0] / "config.json")
    if _is_stanford(folder):
        stated = PYLATE_FIELDS | _metadata(folder)
        stated["skiplist_words"] = PYLATE_FIELDS["skiplist_words"] if stated["punctuation"] else ()
    else:
        file = folder / LIBRARY_CONFIG
        config = read_optional_json(file)
        stated = {name: _checked(file, name, config, default) for name, default in PYLATE_FIELDS.items()}
    length, attends = stated["query_length"], stated["attend_to_expansion_tokens"]
    query = Reading(length, stated["query_prefix"], length if stated["do_query_expansion"] else 0, attends=attends)
    words = stated["skiplist_words"]
    document = Reading(stated["document_length"], stated["document_prefix"], skipped=words, skips_unknown=True)
    return LateInteraction(query, document)


def _of_sentence_transformers(folder: Path, mask_file: Path) -> LateInteraction:
    """Read a ColBERT that sentence-transformers 6 saved."""
    file, config = transformer_config(folder)
    expansion, mask = config.get(EXPANSION) or {}, read_optional_json(mask_file)
    if stated := _stated(folder):
        raise CheckpointUnsupported(
            f"{folder / LIBRARY_CONFIG} has PyLate's {', '.join(stated)}, and {MODULES} lists {TOKEN_MASK}.",
            "Load it with sentence-transformers' MultiVectorEncoder, save it again, and remove these fields.",
        )
    if mask.get("keep_only_token_ids"):
        raise CheckpointUnsupported(
            f"keep_only_token_ids in {mask_file} leaves all other tokens out.", "hfx leaves out skiplist_words only."
        )
    is_read = isinstance(expansion, dict) and expansion.get("strategy") in STRATEGIES and expansion.get(LEAST)
    if expansion and not is_read:
        raise CheckpointCorrupt(f"{EXPANSION} in {file} has no {LEAST}, or no strategy of {STRATEGIES}.", AGAIN)
    query_length, document_length = (_checked(file, name, config, 0) for name in LENGTHS)
    least, filler = _checked(file, LEAST, expansion, 0), _checked(file, "token", expansion, "")
    attends = _checked(file, "attend", expansion, False)
    words = _checked(mask_file, "skiplist_words", mask, ())
    tasks = _checked(mask_file, "skiplist_tasks", mask, (DOCUMENT,))
    of_query, of_document = (words if name in tasks else () for name in (QUERY, DOCUMENT))
    length = least if expansion.get("strategy") == "fixed" else query_length and max(query_length, least)
    query = Reading(length, "", least, filler, attends, of_query)
    return LateInteraction(query, Reading(document_length, skipped=of_document))


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
    """Return the value of the field `name`; `default` if the field is missing or null.

    Raises CheckpointCorrupt if the value has another type than `default`, or is a number below SHORTEST.
    """
    value = stated.get(name)
    if value is None:
        return default
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        value = tuple(value)
    if type(value) is not type(default) or (type(value) is int and value < SHORTEST):
        raise CheckpointCorrupt(f"{name} in {file} is {str(value)[:50]!r}, not {KINDS[type(default)]}.", AGAIN)
    return value


def read_token_layers(folder: Path, hidden: int) -> Pooling:
    """Return the layers through which the ColBERT in `folder` passes each token's vector of `hidden` numbers."""
    unit = Layer("Normalize")  # PyLate and Stanford's library normalize, but their files don't say so
    if _is_stanford(folder):
        dense = Layer("Dense", "", hidden, _metadata(folder)["width"], bias=False, activation="Identity")
        return TokenLayers(layers=(dense, unit), of_roles=True)
    modules = [("Dense" if kind == PYLATE_DENSE else kind, path) for kind, path in read_modules(folder)]
    kinds, masks = [kind for kind, _ in modules], _masks(folder)
    first = ["Transformer"] if masks else ["Transformer", "Dense"]
    known = {TOKEN_MASK, *LAYERS} if masks else {"Dense", "Normalize"}
    if kinds[: len(first)] != first or {*kinds[1:]} - known or len(masks) > 1:
        raise unsupported_modules(folder, f"{', '.join(first)}, and then any of {', '.join(sorted(known))}")
    refuse_messages(folder)
    refuse_prepared_texts(folder, TEXT_METHOD, but=(EXPANSION, *LENGTHS) if masks else ())
    behind = [module for module in modules[1:] if module[0] != TOKEN_MASK]
    layers = [read_layer(folder, *module, TOKEN_EMBEDDINGS, TOKEN_EMBEDDINGS) for module in behind]
    return TokenLayers(layers=tuple(layers if masks else [*layers, unit]), of_roles=True)


def role_ids(
    late: LateInteraction, checkpoint: Checkpoint, tokenizer: Any, request: dict[str, Any], max_length: int
) -> list[list[int]]:
    """Return the ids of a query or document, by transformers' tokenizer."""
    name = QUERY if request.get(names.PROMPT_NAME) == QUERY else DOCUMENT
    role = late.role(name, checkpoint, tokenizer)
    marker = [] if role.marker is None else [role.marker]
    options = {"max_length": role.length - len(marker), "add_special_tokens": not role.looks_up}
    ids = tokenizer(request[names.TEXT_INPUT], truncation=True, **options)["input_ids"]
    ids[1:1] = marker
    return [ids + [role.filler] * (role.least - len(ids))]


def refuse_other_tokens(checkpoint: Checkpoint, table: str, tokenizer: Any) -> None:
    """Raise CheckpointUnsupported for a Router whose queries have another tokenizer than `tokenizer`.

    The special tokens around a text may differ.
    """
    own = load_tokenizer(replace(checkpoint, folder=checkpoint.folder / table, weights=()))
    one, other = (json.loads(each.backend_tokenizer.to_str()) for each in (own, tokenizer))
    both = {name: (one[name], other[name]) for name in ("model", "normalizer", "pre_tokenizer", "added_tokens")}
    if different := [name for name, (mine, its) in both.items() if mine != its]:
        raise CheckpointUnsupported(
            f"The tokenizers of queries ({table}) and documents in {checkpoint.folder} differ: {', '.join(different)}.",
            "hfx has one for both; save the two routes as models of their own.",
        )


def role_settings(late: LateInteraction, checkpoint: Checkpoint, tokenizer: Any) -> dict[str, Any]:
    """Return the roles for settings.json of the tokenizing step."""
    return {name: asdict(late.role(name, checkpoint, tokenizer)) for name in EMBEDDERS_PROMPTS}
