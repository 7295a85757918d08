"""What hfx knows of one task: its requests, and how its answers are shown. A task is a value, a file each."""

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
    """A column of a batch job's output: `cell` takes it out of an answer's outputs."""

    name: str
    kind: CellKind
    cell: Callable[[Answer], Cell]


@dataclass(frozen=True)
class FormField:
    """A field of a request to POST /models/NAME; `path` is its place in the JSON, such as inputs.question.

    `kind`: a text of several lines, of one line, a list with an item in each line, a number, or one of `choices`.
    `value` is what the form begins with, `default` what holds for a field that is not sent. `allowed` is what the
    server takes.
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

    `row` says what it takes and gives; its `options` are those of `hfx infer` that encoders have (generators have those
    of generation_settings.py, too). `lines` shows an answer to people, `columns` are those of a batch job for a model's
    labels. `form` has the fields of the playground, `example` is the end of a command line of `hfx infer`, and `probe`
    a text that a model can answer.
    """

    row: Task
    lines: Callable[[Answer], list[str]]
    columns: Callable[[Sequence[str]], tuple[Column, ...]]
    form: tuple[FormField, ...]
    example: str = "'some text'"
    has_all_labels: bool = False
    probe: str = "A text."


def text_field(value: str) -> FormField:
    """The one text of a request."""
    return FormField("inputs", "Text", "text", value=value, is_required=True)


def output(name: str, kind: CellKind) -> Column:
    """The column of an output as it is."""
    return Column(name, kind, lambda answer: answer[name])


def json_output(name: str) -> Column:
    """The column of an output in JSON."""
    return Column(name, "json", lambda answer: compact(answer[name]))


def compact(value: Any) -> str:
    """`value` as JSON whose floats have their shortest text as float32."""
    return json.dumps(_shortest(value), ensure_ascii=False, separators=(",", ":"))


def as_float32(value: float) -> float:
    """A float32 as the double with the same shortest decimal text: 0.1, not 0.10000000149011612."""
    import numpy as np

    return float(str(np.float32(value)))


def _shortest(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shortest(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_shortest(member) for member in value]
    return as_float32(value) if isinstance(value, float) else value


def shown_score(number: float | None) -> str:
    """A score as people read it."""
    return "?" if number is None else f"{number:.4f}"
