"""Settings that can't be taken, on the real server: refused as invalid by every door, by name and with what is allowed.

The table has every field of the engine; a new one without values that it refuses fails here.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from hfx.exporter.generation.folders import INPUTS
from hfx.python_backends.engine.generation_settings import ALIASES, SETTINGS
from hfx.triton import EmbeddedServer
from tests.triton.generation_asks import Ask, AskFailed
from tests.triton.generation_rig import DOORS, RECITAL
from tests.triton.reciting import POSITIONS

pytestmark = pytest.mark.triton

MOST = 2**31 - 1
NAN, INFINITE = math.nan, math.inf
# What is out of each field's range, though its tensor can hold it.
OUT_OF_RANGE: dict[str, list[Any]] = {
    "max_tokens": [0, -1, -(2**31), POSITIONS + 1, MOST],
    "min_tokens": [-1, MOST],
    "num_beams": [0, -4, 65, MOST],
    "beam_width": [0, -4, 65, MOST],
    "temperature": [-0.5, 1e-9, 100.5, NAN, INFINITE, -INFINITE],
    "top_k": [-1, -(2**31)],
    "top_p": [-0.1, 1.1, NAN, INFINITE],
    "min_p": [-0.1, 1.1, NAN],
    "repetition_penalty": [0.0, -1.0, 101.0, NAN, INFINITE],
    "no_repeat_ngram_size": [-1, -(2**31)],
    "length_penalty": [10.5, -10.5, NAN],
    "early_stopping": ["maybe", "", "True"],
    "long": ["", "cut", "TRUNCATE"],
    "merge": ["", "sum"],
    "overlap": [-1, 17, MOST],
    "stop_words": [[""], ["fine", ""], ["x" * 513], [str(number) for number in range(65)], ["y" * 2**20]],
    "source_lang": ["", "fr_XX", "x" * 2**20],  # of which the model has none
    "target_lang": ["", "fr_XX", "x" * 2**20],
    "timeout_ms": [0, -1, -(2**31)],
}
# Every value that a tensor of these can hold is in range, and num_return_sequences is no tensor.
ALL_IN_RANGE = {"do_sample", "return_log_probs", "seed"}
NO_TENSOR = {"num_return_sequences"}
# What goes beside a value so that nothing but the value is wrong.
BESIDE: dict[str, dict[str, Any]] = {
    "length_penalty": {"num_beams": 2},
    "early_stopping": {"num_beams": 2},
    "overlap": {"long": "chunk"},
    "merge": {"long": "chunk"},
}
CONTRADICTIONS: list[tuple[str, dict[str, Any]]] = [
    ("do_sample", {"do_sample": False, "temperature": 0.7}),
    ("do_sample", {"do_sample": False, "top_k": 5}),
    ("temperature", {"do_sample": True, "temperature": 0.0}),
    ("do_sample", {"do_sample": True, "num_beams": 4}),
    ("top_p", {"top_p": 0.5, "num_beams": 2}),
    ("min_tokens", {"min_tokens": 9, "max_tokens": 8}),
    ("length_penalty", {"length_penalty": 2.0}),
    ("early_stopping", {"early_stopping": "never"}),
    ("beam_width", {"num_beams": 2, "beam_width": 3}),
    ("merge", {"merge": "recursive"}),
    ("overlap", {"overlap": 2}),
    ("long", {"long": "chunk"}),
]
CASES = [(name, {name: value, **BESIDE.get(name, {})}) for name, values in OUT_OF_RANGE.items() for value in values]
INVALID = {400, "INVALID_ARGUMENT", ""}  # an error within a gRPC stream has no code


def test_every_field_is_in_the_tables() -> None:
    tensors = {spec.name for spec in INPUTS} - {"text_input", "stream", "cancel_request"}
    tested = OUT_OF_RANGE.keys() | ALL_IN_RANGE
    assert tested == tensors
    assert tested | NO_TENSOR == {*SETTINGS, *ALIASES, "timeout_ms"}


@pytest.mark.parametrize(("name", "settings"), CASES + CONTRADICTIONS, ids=lambda each: str(each)[:40])
def test_what_can_not_be_taken_is_refused_by_name(
    name: str, settings: dict[str, Any], writing_server: EmbeddedServer
) -> None:
    in_json = not any(isinstance(value, float) and not math.isfinite(value) for value in settings.values())
    for door in DOORS if in_json else ("gRPC infer", "grpc stream"):
        with pytest.raises(AskFailed) as refused:
            DOORS[door](writing_server, Ask(RECITAL, "a", settings))
        assert refused.value.status in INVALID
        message = refused.value.message
        assert name in message or ALIASES.get(name, name) in message
        assert "allowed" in message or str(POSITIONS) in message
