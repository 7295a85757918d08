"""The description of one task: its requests, and how its answers are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hfx.python_backends.tasks import Task

Cell = str | int | float | list[float] | None
CellKind = Literal["text", "integer", "number", "numbers", "json", "any"]
FieldKind = Literal["text", "line", "lines", "integer", "number", "choice"]
Answer = Mapping[str, Any]  # output tensor -> its value for one row


@dataclass(frozen=True)
class Column:
    """A column of a batch job's output; `cell` returns its value for an answer."""

    name: str
    kind: CellKind
    cell: Callable[[Answer], Cell]


@dataclass(frozen=True)
class FormField:
    """A field of a request to POST /models/NAME; `path` is its place in the JSON, such as inputs.question.

    `kind` is a text of several lines, a text of one line, a list with an item on each line, a number, or one of
    `choices`. `value` is the initial value in the form, and `default` the value that the server uses if the field is
    not sent. `allowed` describes the values that the server takes.
    """

    path: str
    label: str
    kind: FieldKind
    help: str = ""
    value: Any = None
    default: Any = None
    allowed: str = ""
    choices: tuple[Any, ...] = ()
    is_required: bool = False
    is_common: bool = True


@dataclass(frozen=True)
class TaskView:
    """One task.

    `row` has the inputs and outputs of the task; its `options` are the options of `hfx infer` for encoders (generators
    also have the settings of generation_settings.py). `lines` formats an answer for people, and `columns` returns the
    columns of a batch job for a model's labels. `form` has the fields of the playground, `example` is the end of a
    command line of `hfx infer`, and `probe` is a text that a model can answer.
    """

    row: Task
    lines: Callable[[Answer], list[str]]
    columns: Callable[[Sequence[str]], tuple[Column, ...]]
    form: tuple[FormField, ...]
    example: str = "'some text'"
    has_all_labels: bool = False
    probe: str = "A text."


def text_field(value: str) -> FormField:
    """Return the field for the text of a request that has only one."""
    return FormField("inputs", "Text", "text", value=value, is_required=True)


def output(name: str, kind: CellKind) -> Column:
    """Return the column of an output without conversion."""
    return Column(name, kind, lambda answer: answer[name])


def json_output(name: str) -> Column:
    """Return the column of an output that is converted to JSON."""
    return Column(name, "json", lambda answer: compact(answer[name]))


def compact(value: Any) -> str:
    """Return `value` as JSON, with the shortest text of each float that is the same float32."""
    return json.dumps(_shortest(value), ensure_ascii=False, separators=(",", ":"))


def as_float32(value: float) -> float:
    """Return the double with the shortest decimal text that is the same float32: 0.1, not 0.10000000149011612."""
    import numpy as np

    return float(str(np.float32(value)))


def _shortest(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shortest(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_shortest(member) for member in value]
    return as_float32(value) if isinstance(value, float) else value


def shown_score(number: float | None) -> str:
    """Format a score for people, with four decimals."""
    return "?" if number is None else f"{number:.4f}"
