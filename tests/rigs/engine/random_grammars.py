"""Random JSON schemas and expressions, a vocabulary of 60 tokens for them, and masks computed from scratch."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import onnxruntime
from llguidance import LLMatcher

from hfx import native
from hfx.python_backends.engine.constraint import NUMPY, Masking, native_masking
from hfx.python_backends.engine.generation_settings import Texts
from hfx.python_backends.generation import grammars
from hfx.python_backends.generation.grammars import GrammarCompiler
from tests.rigs.checkpoints.torch_decoding import END, OTHER_END, PAD, VOCABULARY
from tests.rigs.machine.processors import HAS_NATIVE

CHARACTERS = 'abcdeflnrstu0123456789{}[]",:-. '
WORDS = (
    '":',
    '": ',
    '", "',
    '{"',
    '"}',
    "true",
    "false",
    "null",
    "ab",
    "cd",
    "12",
    ", ",
    "}]",
    "[[",
    "abc",
    '":[',
    "e1",
)
KEYS = ("a", "b", "cd", "tre")


@cache
def tokenizer() -> Any:
    """Return a tokenizers.Tokenizer of VOCABULARY tokens, whose texts are joined unchanged."""
    from tokenizers import Tokenizer, decoders, models

    special = {"<start>": 0, "<pad>": PAD, "<end>": END, "<other end>": OTHER_END}
    free = (token for token in range(VOCABULARY) if token not in special.values())
    ids = special | dict(zip((*CHARACTERS, *WORDS), free, strict=False))
    found = Tokenizer(models.WordLevel(ids, unk_token="a"))
    found.decoder = decoders.Fuse()
    found.add_special_tokens([*special])
    return found


def is_special(token: int) -> bool:
    return token in (0, PAD, END, OTHER_END)


@cache
def compiler(eos: tuple[int, ...], size: int = VOCABULARY) -> GrammarCompiler:
    """Return the compiler for a model with `size` tokens, native if possible; tokens beyond VOCABULARY have no text."""
    return GrammarCompiler(tokenizer(), is_special, size, eos, _masking())


@cache
def _masking() -> Masking:
    if not HAS_NATIVE:
        return NUMPY
    masking = native_masking(native.library())
    onnxruntime.SessionOptions().register_custom_ops_library(str(native.library()))
    return masking


def some_ids(size: int, eos: tuple[int, ...]) -> Any:
    """Return a maker of matchers that forbid every seventh id of `size`; ids are no letters here."""
    from tokenizers import Tokenizer, decoders, models

    letters = [chr(0x4E00 + token) for token in range(size)]
    found = Tokenizer(models.WordLevel(dict(zip(letters, range(size), strict=True)), unk_token=letters[0]))
    found.decoder = decoders.Fuse()
    made = GrammarCompiler(found, lambda token: token in eos, size, eos)
    return made.compile(Texts(regex=f"[^{''.join(letters[::7])}]*"))


def text_of(ids: tuple[int, ...]) -> str:
    """Return the text of tokens."""
    return str(tokenizer().decode([token for token in ids if not is_special(token)]))


def new_mask(texts: Texts, eos: tuple[int, ...], size: int = VOCABULARY) -> Callable[[list[int]], list[int]]:
    """Return the tokens that may follow `texts`, by a new matcher; after an end token only ends may follow."""
    form = grammars.structure_of(texts)
    assert form is not None
    opened, vocabulary = compiler(eos, size)._open(form)
    beginning = LLMatcher(opened, grammars.written(form, vocabulary.loses_space))

    def allowed(tokens: list[int]) -> list[int]:
        matcher = beginning.deep_copy()
        taken = matcher.try_consume_tokens([token for token in tokens if token not in eos])
        if any(token in eos for token in tokens) or taken < len(tokens):
            return list(eos)
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")[:size]
        others = {*np.flatnonzero(bits).tolist()} - {*eos}
        return sorted(others | ({*eos} if matcher.is_accepting() else set()))

    return allowed


def random_structure(seed: int, bounded: bool = True) -> dict[str, Any]:
    """Return a setting and its value, mostly a JSON schema; `bounded` answers have at most some 100 characters."""
    draw = random.Random(seed)
    kind = draw.choice(("json_schema",) * 6 + ("regex", "choices"))
    if kind == "regex":
        part = draw.choice(
            ("[a-f]{1,4}", "(ab|cd)+?" if not bounded else "(ab|cd){1,3}", r"[0-9]+", "(a|ab)(c|bcd)(d*)")
        )
        return {"regex": part + draw.choice(("", "-[0-9]{2}", "(tre|lu)?"))}
    if kind == "choices":
        texts = ("".join(draw.choices("abcdef ", k=draw.randint(1, 6))) for _ in range(draw.randint(1, 9)))
        return {"choices": tuple(dict.fromkeys(texts))}
    schema = random_schema(draw, 3, bounded) | {"$defs": {"part": random_schema(draw, 0, bounded)}}
    return {"json_schema": json.dumps(schema)}


def random_schema(draw: random.Random, depth: int, bounded: bool = True) -> dict[str, Any]:
    """Return a random schema of the supported keywords."""
    flat = ("string", "integer", "number", "enum", "boolean", "null", "const", "pattern")
    nested = ("array", "object", "object", "anyOf", "ref", "allOf") if depth else ()
    kind = draw.choice(flat + nested * 3)
    return _MAKERS[kind](draw, depth, bounded)


def _string(draw: random.Random, depth: int, bounded: bool) -> dict[str, Any]:
    least = draw.randint(0, 2)
    return {"type": "string", "minLength": least, **({"maxLength": least + draw.randint(0, 4)} if bounded else {})}


def _integer(draw: random.Random, depth: int, bounded: bool) -> dict[str, Any]:
    low = draw.randint(-50, 50)
    extra = draw.choice(({}, {"multipleOf": draw.randint(2, 9)}))
    return {"type": "integer", "minimum": low, "maximum": low + draw.randint(10, 500), **extra}


def _number(draw: random.Random, depth: int, bounded: bool) -> dict[str, Any]:
    return {"type": "number", "minimum": draw.randint(-9, 0), "exclusiveMaximum": draw.randint(1, 90)}


def _values(draw: random.Random) -> list[Any]:
    return draw.sample(["a", "ab", "cd", 1, 12, -3, True, None, ["a", 2], {"a": 1}, 0.5], draw.randint(1, 5))


def _array(draw: random.Random, depth: int, bounded: bool) -> dict[str, Any]:
    least = draw.randint(0, 2)
    items = {"items": random_schema(draw, depth - 1, bounded)}
    return {"type": "array", **items, "minItems": least, "maxItems": least + draw.randint(0, 2)}


def _object(draw: random.Random, depth: int, bounded: bool) -> dict[str, Any]:
    keys = draw.sample(KEYS, draw.randint(1, 3))
    required = [key for key in keys if draw.random() < 0.6]
    properties = {key: random_schema(draw, depth - 1, bounded) for key in keys}
    others: Any = False if bounded else draw.choice((False, True, {"type": "integer"}))
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": others}


def _all_of(draw: random.Random, depth: int, bounded: bool) -> dict[str, Any]:
    integer = _integer(draw, 0, bounded)
    return {"allOf": [integer, {"minimum": integer["maximum"] - draw.randint(9, 30)}]}


_MAKERS: dict[str, Callable[[random.Random, int, bool], dict[str, Any]]] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "enum": lambda draw, depth, bounded: {"enum": _values(draw)},
    "const": lambda draw, depth, bounded: {"const": _values(draw)[0]},
    "boolean": lambda draw, depth, bounded: {"type": "boolean"},
    "null": lambda draw, depth, bounded: {"type": draw.choice(("null", ["null", "boolean"]))},
    "pattern": lambda draw, depth, bounded: {
        "type": "string",
        "pattern": draw.choice(("^[a-c]{1,3}$", "^(ab|1)+$", "b")),
    },
    "array": _array,
    "object": _object,
    "anyOf": lambda draw, depth, bounded: {
        "anyOf": [random_schema(draw, depth - 1, bounded) for _ in range(draw.randint(1, 3))]
    },
    "ref": lambda draw, depth, bounded: {"$ref": "#/$defs/part"},
    "allOf": _all_of,
}


def check(form: dict[str, Any], text: str) -> None:
    """Fail if `text` does not match `form`."""
    ((kind, value),) = form.items()
    if kind == "choices":
        assert text in value
    elif kind == "regex":
        assert re.fullmatch(value, text), (value, text)
    else:
        schema = json.loads(value)
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
