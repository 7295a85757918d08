"""Cells of the output as bytes, written in parts and joined."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hfx.batch.parts import Csv
from hfx.batch.rows import as_float32, as_float32s

COLUMNS = {"row": "integer", "text": "any", "score": "number", "error": "text", "truncated_tokens": "integer"}
TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
@example([0.000987, 9.92293e-07, 0.1, -0.0])
@example([10.0**exponent for exponent in range(-40, 39)])
def test_floats_have_the_shortest_text_of_their_float32(values: list[float]) -> None:
    found = as_float32s(values)
    assert [repr(value) for value in found] == [repr(as_float32(value)) for value in values]


@given(st.lists(TEXTS | st.none(), min_size=1))
@example(["a lone \r in it", "\r", "\n", '"', "", None, "\u2028"])
def test_any_text_survives_being_written_joined_and_read(texts: list[str | None]) -> None:
    part, output = io.BytesIO(), io.BytesIO()
    numbers = list(range(1, len(texts) + 1))
    form = Csv(COLUMNS)
    form.write(part, [[[at], [text], [0.1], [None], [at - 1]] for at, text in zip(numbers, texts, strict=True)])
    part.seek(0)
    found = [entry for entries in form.join([part], output) for entry in entries]
    assert found == [(number, None, number - 1) for number in numbers]
    rows = list(csv.reader(io.StringIO(output.getvalue().decode(), newline=""), strict=True))
    cells = ([str(at), text or "", "0.1", "", str(at - 1)] for at, text in zip(numbers, texts, strict=True))
    assert rows == [list(COLUMNS), *cells]


def test_a_part_that_is_no_csv_is_damaged() -> None:
    with pytest.raises(ValueError, match="unexpected end"):
        list(Csv(COLUMNS).join([io.BytesIO(b'row,text,score,error,truncated_tokens\n1,"a\n')], io.BytesIO()))
