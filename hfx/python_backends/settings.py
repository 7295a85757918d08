"""The settings.json of the tokenizing step, which decides, together with tokenizer.json, how a text becomes tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from .checks import annotated, boolean, integer, mapping, one_of, optional, string, strings, token_id, token_ids
from .errors import InvalidRequest
from .tasks import TASKS

MOST_INPUTS, LONGEST_NAME = 16, 64
QUERY, DOCUMENT, TEXT = "query", "document", "text_input"
FIELDS = {"prompt", QUERY, TEXT}  # of a template


def _ascending(name: str, value: Any) -> tuple[int, ...]:
    widths = token_ids(name, value)
    if not widths or list(widths) != sorted(set(widths)):
        raise InvalidRequest(name, value, "a list of ascending numbers of tokens")
    return widths


def _template(name: str, value: Any) -> str:
    template: str = string(name, value)
    if template.format("x") == template:
        raise InvalidRequest(name, value, "a text with a place {} for the label", f"{name} {value!r} has no place {{}}")
    return template


def _prompts(name: str, value: Any) -> dict[str, str]:
    return {string(name, key): string(f"{name}.{key}", text) for key, text in mapping(name, value).items()}


def _parts(name: str, value: Any) -> tuple[str, ...]:
    parts = tuple(string(name, each) for each in value) if isinstance(value, list | tuple) else ()
    if len(parts) % 2 == 0 or parts[1::2].count(TEXT) != 1 or parts[-2] != TEXT or not {*parts[1::2]} <= FIELDS:
        raise InvalidRequest(name, value, f"a list of texts and, between them, {', '.join(sorted(FIELDS))}")
    return parts


@dataclass(frozen=True)
class Role:
    """How a model with roles (ColBERT) reads its queries, or its documents. Raises InvalidRequest.

    The `marker`, if there is one, follows the first token; with it, a text has at most `length` tokens. A shorter text
    is filled up to `least` tokens with `filler`, which other tokens attend to only if it `attends`. Tokens in `skipped`
    are read, but have no vector. With `looks_up`, a text has no special tokens, and its own tokens have the mask 2: the
    net looks their numbers up.
    """

    length: Annotated[int, integer(1)]
    marker: Annotated[int | None, optional(token_id)] = None
    least: Annotated[int, integer(0)] = 0
    filler: Annotated[int, token_id] = 0
    attends: Annotated[bool, boolean] = False
    skipped: Annotated[tuple[int, ...], token_ids] = ()
    looks_up: Annotated[bool, boolean] = False

    def __post_init__(self) -> None:
        for name, check in annotated(type(self)).items():
            object.__setattr__(self, name, check(name, getattr(self, name)))


@dataclass(frozen=True)
class Labelled:
    """How a model reads a text behind the labels of a request. Raises InvalidRequest.

    `markers` are the texts of the tokens before each label, and behind all of them. A marker stands for its label if
    the model `embeds_marker`; otherwise the token behind it does. Models that find entities read at most `words` words
    in a window; the first token of a word stands for it, or the last one. Models that classify a text have no `words`.
    A label's tokens are `averaged` in some of them. The separator stands for the text if the model `reads_separator`;
    otherwise the first token does. The labels of a model without `markers` go through a net of their own, which reads
    `label_tokens` of each.
    """

    markers: Annotated[tuple[str, ...], strings(MOST_INPUTS, LONGEST_NAME)]
    embeds_marker: Annotated[bool, boolean] = True
    words: Annotated[int, integer(0)] = 0
    first_tokens: Annotated[bool, boolean] = True
    averaged: Annotated[bool, boolean] = False
    reads_separator: Annotated[bool, boolean] = False
    label_tokens: Annotated[int, integer(0)] = 0

    def __post_init__(self) -> None:
        for name, check in annotated(type(self)).items():
            object.__setattr__(self, name, check(name, getattr(self, name)))


def _labelled(name: str, value: Any) -> Labelled:
    return value if isinstance(value, Labelled) else Labelled(**mapping(name, value))


def _roles(name: str, value: Any) -> dict[str, Role]:
    roles = {key: Role(**mapping(f"{name}.{key}", fields)) for key, fields in mapping(name, value).items()}
    if roles.keys() != {QUERY, DOCUMENT}:
        raise InvalidRequest(name, value, f"an object of the roles {QUERY} and {DOCUMENT}")
    return roles


@dataclass(frozen=True)
class Settings:
    """How texts become tensors. Raises InvalidRequest.

    `widths` are the lengths (tokens) that sequences are padded to, ascending; the last one is at least
    `max_length`. `inputs` are the net's inputs. A model with a `stride` reads long texts in windows that share so many
    tokens, unless a request says otherwise. `doc_stride`, `question_first` and `cls_id` concern
    question-answering, `hypothesis_template` concerns zero-shot-classification. `vocab_size` is the number of the
    net's embeddings if the tokenizer has ids beyond them, else None. `prompts` are texts, by name, that a request
    may have put before its own (None: the model has none); `default_prompt` is the prompt of requests that name
    none. Without `pools_prompt`, a prompt's tokens have the mask 2. With `takes_empty`, the model answers texts
    without tokens. A `template` makes one text of a pair: it alternates texts and names of FIELDS, and the last name
    is that of the text. `prompted_template` is the template of requests with a prompt. The net reads the
    ids `prefix`, which the template begins with, by itself. With `strips`, white space around the text is left out.
    `roles` are the roles of a model that reads queries and documents differently. A model is `labelled` if it reads a
    text behind the labels of a request.
    """

    task: Annotated[str, one_of(*TASKS)]
    max_length: Annotated[int, integer(1)]
    widths: Annotated[tuple[int, ...], _ascending]
    pad_id: Annotated[int, token_id] = 0
    pad_type_id: Annotated[int, integer(0)] = 0
    truncation_side: Annotated[str, one_of("left", "right")] = "right"
    inputs: Annotated[tuple[str, ...], strings(MOST_INPUTS, LONGEST_NAME)] = ("input_ids", "attention_mask")
    stride: Annotated[int | None, optional(integer(0))] = None
    doc_stride: Annotated[int, integer(0)] = 0
    question_first: Annotated[bool, boolean] = True
    cls_id: Annotated[int | None, optional(token_id)] = None
    hypothesis_template: Annotated[str, _template] = "This example is {}."
    vocab_size: Annotated[int | None, optional(integer(1))] = None
    prompts: Annotated[Mapping[str, str] | None, optional(_prompts)] = None
    default_prompt: Annotated[str, string] = ""
    pools_prompt: Annotated[bool, boolean] = True
    takes_empty: Annotated[bool, boolean] = False
    template: Annotated[tuple[str, ...] | None, optional(_parts)] = None
    prompted_template: Annotated[tuple[str, ...] | None, optional(_parts)] = None
    prefix: Annotated[tuple[int, ...], token_ids] = ()
    strips: Annotated[bool, boolean] = False
    roles: Annotated[Mapping[str, Role] | None, optional(_roles)] = None
    labelled: Annotated[Labelled | None, optional(_labelled)] = None

    def __post_init__(self) -> None:
        for name, check in annotated(type(self)).items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.template and (QUERY in self.template[1::2]) != (self.task == "text-ranking"):
            raise InvalidRequest("template", self.template, f"texts and, of text-ranking alone, a {QUERY}")
        if self.widths[-1] < self.max_length:
            raise InvalidRequest("widths", self.widths, "", f"no width holds {self.max_length} tokens")

    @property
    def nested(self) -> bool:
        """Whether a row may have several sequences, in tensors [rows, sequences, width]."""
        return TASKS[self.task].nested or self.stride is not None

    @classmethod
    def read(cls, path: Path | str) -> Settings:
        """Read the settings from the JSON file `path`; unknown keys are ignored. Raises ValueError."""
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
        known = {field.name for field in fields(cls)}
        try:
            return cls(**{key: value for key, value in raw.items() if key in known})
        except (TypeError, ValueError, InvalidRequest) as error:
            raise ValueError(f"{path}: {error}") from error
