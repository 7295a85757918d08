"""The tensors of a model, and checks that a request fits them.

These checks are made before a request is sent, so that a mistake is named and costs no call. The model checks the
ranges of values.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hfx.errors import UsageError

SHOWN = 60  # characters of a value in a message


def short(form: reprlib.Repr) -> reprlib.Repr:
    """Return `form` with limits that are enough for the SHOWN characters of a value in a message."""
    form.maxstring = form.maxother = 2 * SHOWN
    form.maxlist = form.maxdict = SHOWN // 3
    return form


SHORT = short(reprlib.Repr())

INTEGERS = {
    name: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if name.startswith("INT") else (0, 2**bits - 1)
    for bits in (8, 16, 32, 64)
    for name in (f"INT{bits}", f"UINT{bits}")
}
INT32_MAX = 2**31 - 1
TEMPORARY = ".next"  # in the names of members during a reload
FLOATS = ("FP16", "FP32", "FP64")


Value = str | int | float | bool
Values = Mapping[str, Sequence[Value]]  # input tensor -> the values of one request


@dataclass(frozen=True)
class TensorMetadata:
    """A tensor of a model. `datatype` is Triton's name (BYTES, INT32, …); -1 in `shape` is a dimension of any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


def tensors_of(rows: Sequence[Mapping[str, Any]], lead: tuple[int, ...] = ()) -> tuple[TensorMetadata, ...]:
    """Return the inputs or outputs of a config.pbtxt, with `lead` before their dimensions."""
    return tuple(
        TensorMetadata(
            str(row["name"]),
            str(row["data_type"]).removeprefix("TYPE_").replace("STRING", "BYTES"),
            (*lead, *map(int, row["dims"])),
        )
        for row in rows
    )


@dataclass(frozen=True)
class ModelMetadata:
    """The inputs and outputs of a model.

    `task` and `kind` (the Kind of encoder) come from the model's configuration. They are empty if the configuration
    does not have them, or was not read.
    """

    name: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    task: str = field(default="", compare=False)
    kind: str = field(default="", compare=False)

    @cached_property
    def input_types(self) -> Mapping[str, str]:
        """The data type of each input, by its name."""
        return {tensor.name: tensor.datatype for tensor in self.inputs}

    @property
    def needs_labels(self) -> bool:
        """Whether each request must have the labels that the model looks for."""
        return "candidate_labels" in self.input_types


def check_text(text: object, role: str) -> str:
    """Return `text`. Raises UsageError unless it is a string that UTF-8 can encode."""
    if not isinstance(text, str):
        raise UsageError(f"The value of {role} is of type {type(text).__name__}, not a string.", "Give a str.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"The value of {role} is not Unicode text: its character {error.start} is half of a surrogate pair.",
            'Read its source with the right encoding, or replace such characters: text.encode("utf-8", "replace").',
        ) from None
    return text


def check_values(model: ModelMetadata, values: Mapping[str, Sequence[object]]) -> None:
    """Raise UsageError for an input that `model` does not have, or a value that its type can't hold."""
    unknown = [name for name in values if name not in model.input_types]
    if unknown:
        raise UsageError(
            f"The model {model.name!r} has no input {', '.join(unknown)}: it takes {', '.join(model.input_types)}.",
            "Leave it out, or use a model of the right task: `hfx list` shows the tasks.",
        )
    for name, items in values.items():
        datatype = model.input_types[name]
        for item in (item for item in items if not _holds(datatype, item)):
            raise UsageError(
                f"The input {name} of {model.name!r} is {shown(item)}; it takes {_described(datatype)}.",
                "Give a value of that kind.",
            )


def check_outputs(model: ModelMetadata, needed: Sequence[str]) -> None:
    """Raise UsageError if `model` lacks an output that is `needed`."""
    outputs = [tensor.name for tensor in model.outputs]
    missing = [name for name in needed if name not in outputs]
    if missing:
        raise UsageError(
            f"The model {model.name!r} has no output {', '.join(missing)}: it returns {', '.join(outputs)}.",
            "Use the method of its task: `hfx list` shows the tasks.",
        )


def _holds(datatype: str, item: object) -> bool:
    if datatype in INTEGERS:
        low, high = INTEGERS[datatype]
        return isinstance(item, int) and not isinstance(item, bool) and low <= item <= high
    if datatype in FLOATS:
        return isinstance(item, int | float) and not isinstance(item, bool)
    return isinstance(item, bool if datatype == "BOOL" else str)


def _described(datatype: str) -> str:
    if datatype in INTEGERS:
        low, high = INTEGERS[datatype]
        return f"a whole number from {low} to {high}"
    return "a number" if datatype in FLOATS else "True or False" if datatype == "BOOL" else "a text"


def shown(value: object, form: reprlib.Repr = SHORT) -> str:
    """Return `value` for a message, in at most 60 characters. Only the beginning of a huge value is read."""
    text = repr(value[:SHOWN]) if isinstance(value, str) else form.repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
