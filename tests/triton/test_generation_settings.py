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

# What is out of each field's range, though its tensor can hold it; tests/unit/test_generation_settings.py has more.
OUT_OF_RANGE: dict[str, Any] = {
    "max_tokens": POSITIONS + 1,
    "min_tokens": -(2**31),
    "num_beams": 2**31 - 1,
    "beam_width": 65,
    "temperature": -0.5,
    "top_k": -1,
    "top_p": math.inf,
    "min_p": 1.1,
    "repetition_penalty": 0.0,
    "no_repeat_ngram_size": -1,
    "length_penalty": -10.5,
    "early_stopping": "maybe",
    "long": "cut",
    "merge": "",
    "overlap": 17,
    "stop_words": ["y" * 2**20],
    "source_lang": "fr_XX",  # of which the model has none
    "target_lang": "fr_XX",
    "timeout_ms": 0,
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
CASES = [
    *((name, {name: value, **BESIDE.get(name, {})}) for name, value in OUT_OF_RANGE.items()),
    ("top_p", {"top_p": 0.5, "num_beams": 2}),
    ("long", {"long": "chunk"}),
]
INVALID = {400, "INVALID_ARGUMENT", ""}  # an error within a gRPC stream has no code


def test_every_field_is_in_the_tables() -> None:
    tensors = {spec.name for spec in INPUTS} - {"text_input", "stream", "cancel_request"}
    tested = OUT_OF_RANGE.keys() | ALL_IN_RANGE
    assert tested == tensors
    assert tested | NO_TENSOR == {*SETTINGS, *ALIASES, "timeout_ms"}


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda each: str(each)[:40])
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
