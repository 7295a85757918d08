"""Refusals of a field that is missing, misspelled or of the wrong type in a dialect's body."""

from __future__ import annotations

import pytest

from hfx.front.fields import Fields, refuse_unknown, text
from hfx.front.refusals import Refusal


@pytest.mark.parametrize(
    ("value", "message"), [(None, "model is missing or null. Send a string."), (3, "model is 3. Send a string.")]
)
def test_a_field_that_must_be_a_string_is_named(value: object, message: str) -> None:
    with pytest.raises(Refusal) as refused:
        text(value, "model")
    assert refused.value.message == message


def test_missing_texts_are_named() -> None:
    with pytest.raises(Refusal) as refused:
        Fields().texts("inputs")
    assert refused.value.message.startswith("inputs is missing or null.")


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (("top_k", "truncate"), "There is no field 'topk'. Did you mean top_k?"),
        (("inputs", "normalize"), "There is no field 'topk'. Send inputs, normalize."),
        ((), "There is no field 'topk'. Leave it out."),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_or_all_known_fields(known: tuple[str, ...], message: str) -> None:
    with pytest.raises(Refusal) as refused:
        refuse_unknown({"topk": 1}, known)
    assert refused.value.message == message
