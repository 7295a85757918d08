"""Examples as rows of a CSV file: one column a field, the key left out, lists and entities as JSON.

Owns the columns; `label` and `text` keep these names, so that a command can be pointed at them.
"""

from __future__ import annotations

import dataclasses
import json

from tests.zoo.examples import Example


def header(example: Example) -> list[str]:
    """The column names for examples of this kind."""
    return [field.name for field in dataclasses.fields(example) if field.name != "key"]


def row(example: Example) -> list[str]:
    """The cells of one example, in the order of `header`."""
    values = dataclasses.asdict(example)
    return [_cell(values[name]) for name in header(example)]


def _cell(value: object) -> str:
    return json.dumps(value) if isinstance(value, tuple) else str(value)
