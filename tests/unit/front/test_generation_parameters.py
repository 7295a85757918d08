"""Every setting of transformers' generate is taken, mapped or refused in Hugging Face's APIs."""

from __future__ import annotations

from typing import Any

import pytest

from hfx.front.dialects.generation_parameters import LENGTHS, NEUTRAL, PAD, resolve_do_sample
from hfx.front.fields import Fields
from hfx.front.refusals import Refusal
from hfx.python_backends.engine.generation_settings import BY_ALL_NAMES
from hfx.tasks.transformers_settings import INSTEAD, LACKING, OF_MODEL, RESULTS, WITHOUT_EFFECT


def test_every_setting_of_transformers_belongs_to_exactly_one_table() -> None:
    from transformers import GenerationConfig

    tables = (set(BY_ALL_NAMES), set(LENGTHS), {PAD}, set(OF_MODEL), set(LACKING), set(RESULTS), set(WITHOUT_EFFECT))
    for name in vars(GenerationConfig()):
        assert sum(name in table for table in tables) == 1, name


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_a_lacking_setting_is_taken_with_a_value_that_changes_nothing_alone(name: str) -> None:
    for value in (None, *NEUTRAL[name]):
        Fields({name: value}).refuse_unsupported(NEUTRAL)
    with pytest.raises(Refusal) as refused:
        Fields({name: "another"}).refuse_unsupported(NEUTRAL)
    assert (refused.value.status, refused.value.param) == (400, name)
    assert INSTEAD.get(name, name) in refused.value.message


def test_a_refusal_names_only_settings_that_exist() -> None:
    assert {*INSTEAD} <= {*LACKING, *OF_MODEL}
    assert {*INSTEAD.values()} <= {*BY_ALL_NAMES}


@pytest.mark.parametrize(
    ("sent", "resolved"),
    [
        ({"temperature": 0.7}, {"temperature": 0.7}),
        ({"do_sample": True, "top_k": 50}, {"do_sample": True, "top_k": 50}),
        ({"do_sample": False, "seed": 3}, {"do_sample": False, "seed": 3}),
        ({"do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": None}, {"do_sample": False}),
        ({"do_sample": False, "temperature": 0.7, "top_k": 50}, {"temperature": 0.7, "top_k": 50}),
    ],
)
def test_only_settings_that_are_on_sample_beside_a_false_do_sample(
    sent: dict[str, Any], resolved: dict[str, Any]
) -> None:
    assert resolve_do_sample(sent) == resolved
