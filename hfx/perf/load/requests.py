"""Requests from a data file, or synthetic requests: plain values by the names of the model's input tensors."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hfx import names
from hfx.errors import UsageError
from hfx.names import CANDIDATE_LABELS, QUERY, QUESTION, TEXT_INPUT
from hfx.rows import Row, RowError, read_rows
from hfx.tasks.values import KINDS, Scalar, values_of

Settings = Mapping[str, Scalar | Sequence[Scalar]]

# Inputs that a request must have if the model has them.
TEXTS = (names.TEXT_INPUT, names.QUERY, names.QUESTION, names.CONTEXT, names.CANDIDATE_LABELS)
USUAL: Mapping[str, tuple[str, ...]] = {names.TEXT_INPUT: (names.TEXT_INPUT, "text", "prompt", "sentence", "document")}
SETTINGS = tuple(name for name in KINDS if name not in TEXTS)


@dataclass(frozen=True)
class Request:
    """One request: input tensor -> its values."""

    inputs: Mapping[str, tuple[Scalar, ...]]


@dataclass(frozen=True)
class RequestSet:
    """Requests that are sent in turn, cyclically. `description` is for result files."""

    items: tuple[Request, ...]
    description: str

    def at(self, number: int) -> Request:
        """Return the request with this number, from 0."""
        return self.items[number % len(self.items)]


def from_file(
    path: Path, columns: Mapping[str, str], settings: Settings | None = None, inputs: Collection[str] = SETTINGS
) -> RequestSet:
    """Return a request for each row of a file that hfx.rows can read.

    `columns` maps tensors to columns; an empty column stands for the tensor's usual column names. A column with the
    name of a setting overrides `settings` for its request, if its cell is not empty and the setting is among the
    model's `inputs`. Raises RowError, which names file, line and column.
    """
    rows = read_rows(path)
    where = {tensor: _located(tensor, column, rows.columns, path) for tensor, column in columns.items()}
    own = {name: name for name in SETTINGS if name in inputs and name not in where}
    shared = constants(settings)
    requests = []
    for row in rows.rows:
        present = {tensor: column for tensor, column in own.items() if row.cells.get(column) not in (None, "")}
        texts, chosen = (_cells(path, row, tensors, rows.textual) for tensors in (where, present))
        requests.append(Request(texts | shared | chosen))
    if not requests:
        raise RowError(path, "it has columns but no row.", "Give a row for each request.")
    return RequestSet(tuple(requests), _described(path, requests, where, shared))


def constants(settings: Settings | None) -> dict[str, tuple[Scalar, ...]]:
    """Return `settings`, which all requests share, as tensor values. Raises UsageError."""
    return {name: values_of(name, value, textual=True) for name, value in (settings or {}).items()}


def text_tensors(inputs: Iterable[str]) -> tuple[str, ...]:
    """Return the tensors that every request to a model with these `inputs` needs.

    Raises UsageError if there are none.
    """
    taken = set(inputs)
    texts = tuple(name for name in TEXTS if name in taken)
    if not texts:
        raise UsageError(
            f"The model takes no text: it takes {', '.join(sorted(taken)) or 'nothing'}.",
            "Ask for the model itself, not for a member of it: `hfx list` shows the names.",
        )
    return texts


def parse_columns(given: Sequence[str], inputs: Iterable[str]) -> dict[str, str]:
    """Parse values of --column: COLUMN (for the text) or TENSOR=COLUMN. Returns tensor -> column.

    Needed tensors that are not given get an empty column (see `from_file`). Raises UsageError for a tensor that is not
    among the model's `inputs`.
    """
    inputs = list(inputs)
    needed = text_tensors(inputs)
    found: dict[str, str] = {}
    for part in given:
        tensor, column = _pair(part, needed)
        if tensor not in inputs or tensor in found:
            reason = "is given twice" if tensor in found else f"is none of the model's inputs: {', '.join(inputs)}"
            raise UsageError(f"The column of {tensor!r} can't be set: it {reason}.", "Give TENSOR=COLUMN once each.")
        found[tensor] = column
    return dict.fromkeys(needed, "") | found


def _cells(path: Path, row: Row, tensors: Mapping[str, str], textual: bool) -> dict[str, tuple[Scalar, ...]]:
    """Return tensor -> values, from the cells of a row. `tensors` maps tensors to columns. Raises RowError."""
    values = {}
    for tensor, column in tensors.items():
        try:
            values[tensor] = values_of(tensor, row.cells.get(column), textual)
        except UsageError as error:
            raise RowError(path, error.message, error.fix, row.place, column) from None
    return values


def _described(
    path: Path, requests: Sequence[Request], where: Mapping[str, str], shared: Mapping[str, tuple[Scalar, ...]]
) -> str:
    tensor, column = next(iter(where.items()))
    lengths = sorted(len(str(request.inputs[tensor][0]).split()) for request in requests)
    noun = "request" if len(requests) == 1 else "requests"
    size = f"{lengths[0]} to {lengths[-1]} words" if lengths[0] < lengths[-1] else f"{lengths[0]} words"
    return f"{path.name}, column {column}: {len(requests)} {noun} of {size}{settings_text(shared)}"


def settings_text(shared: Mapping[str, tuple[Scalar, ...]]) -> str:
    """Return the settings that all requests share as text, to be appended to a description."""
    return "".join(f", {name}={','.join(map(str, values))}" for name, values in shared.items())


def _located(tensor: str, column: str, present: Collection[str], path: Path) -> str:
    wanted = (column,) if column else USUAL.get(tensor, (tensor,))
    found = next((name for name in wanted if name in present), None)
    if found is None:
        option = "--column COLUMN" if tensor == names.TEXT_INPUT else f"--column {tensor}=COLUMN"
        raise RowError(
            path,
            f"it has no column {wanted[0]!r}; its columns are {', '.join(present) or 'none'}.",
            f"Say which one is the {tensor} with {option}.",
        )
    return found


def _pair(part: str, needed: Sequence[str]) -> tuple[str, str]:
    tensor, equals, column = part.partition("=")
    if not equals:
        if len(needed) > 1 and needed[0] != names.TEXT_INPUT:
            raise UsageError(
                f"The column {part!r} could be the {' or the '.join(needed)}.",
                f"Give {' and '.join(f'{name}=COLUMN' for name in needed)}.",
            )
        tensor, column = needed[0], part
    if not column:
        raise UsageError(f"{part!r} names no column.", "Give COLUMN, or TENSOR=COLUMN.")
    return tensor, column


# Synthetic requests: texts of common words, with drawn lengths in words

LABELS: tuple[Scalar, ...] = ("sports", "politics", "travel")
QUESTION_WORDS = 8
LONGEST = 1_000_000
FIX = "Give fixed:N, uniform:A-B or lognormal:MEDIAN,SIGMA[,MAX]."
WORDS = (
    "the", "garden", "of", "a", "friend", "was", "lovely", "and", "old", "house", "is", "quiet", "people", "went",
    "to", "market", "with", "her", "dog", "when", "it", "rained", "they", "found", "bread", "near", "river", "some",
    "children", "played", "music", "in", "that", "long", "summer", "for", "many", "days", "he", "wrote", "about",
    "work", "city", "light", "on", "water", "small", "boats", "came", "back", "before", "night", "we", "never", "saw",
)  # fmt: skip


def synthetic(
    count: int,
    lengths: Lengths,
    seed: int = 0,
    settings: Settings | None = None,
    tensors: Sequence[str] = (TEXT_INPUT,),
    opening: str = "",
) -> RequestSet:
    """Return `count` requests with random texts whose `lengths` are in words. Equal seeds give equal texts.

    A question or query always has QUESTION_WORDS words, and labels are always LABELS. Other texts begin with `opening`.
    Raises UsageError.
    """
    if count < 1:
        raise UsageError(f"{count} requests can't be made.", "Give at least 1.")
    chance, shared = random.Random(seed), constants(settings)

    def text(tensor: str) -> tuple[Scalar, ...]:
        if tensor == CANDIDATE_LABELS:
            return LABELS
        if tensor in (QUESTION, QUERY):
            return (f"{_of_words(QUESTION_WORDS, chance)}?",)
        return (f"{opening}{_of_words(lengths.draw(chance), chance)}",)

    items = tuple(Request({tensor: text(tensor) for tensor in tensors} | shared) for _ in range(count))
    plural = "" if lengths.description == "1" else "s"
    return RequestSet(items, f"synthetic texts of {lengths.description} word{plural}{settings_text(shared)}")


@dataclass(frozen=True)
class Lengths:
    """A distribution of text lengths in words. `draw` returns a random length."""

    description: str
    draw: Callable[[random.Random], int]


def parse_lengths(text: str) -> Lengths:
    """Return the distribution "fixed:N", "uniform:A-B", or "lognormal:MEDIAN,SIGMA[,MAX]" (which real prompts follow).

    Raises UsageError.
    """
    kind, _, numbers = text.strip().partition(":")
    try:
        return LENGTHS[kind](numbers)
    except (KeyError, ValueError):
        raise UsageError(f"The lengths {text!r} can't be read.", FIX) from None


def _fixed(numbers: str) -> Lengths:
    length = _length(numbers)
    return Lengths(f"{length}", lambda chance: length)


def _uniform(numbers: str) -> Lengths:
    least, most = map(_length, numbers.split("-"))
    if least > most:
        raise ValueError(numbers)
    return Lengths(f"{least} to {most}", lambda chance: chance.randint(least, most))


def _log_normal(numbers: str) -> Lengths:
    first, second, *bound = numbers.split(",")
    median, sigma, most = float(first), float(second), _length(*bound) if bound else LONGEST
    if not (1 <= median <= most and 0 < sigma <= 5):
        raise ValueError(numbers)

    def draw(chance: random.Random) -> int:
        drawn = chance.lognormvariate(math.log(median), sigma)
        return max(1, min(most, round(min(drawn, LONGEST))))

    limit = f", at most {most}" if bound else ""
    return Lengths(f"log-normal with median {median:g} and sigma {sigma:g}{limit}", draw)


def _length(text: str) -> int:
    length = int(text)
    if not 1 <= length <= LONGEST:
        raise ValueError(text)
    return length


LENGTHS: Mapping[str, Callable[[str], Lengths]] = {"fixed": _fixed, "uniform": _uniform, "lognormal": _log_normal}


def _of_words(count: int, chance: random.Random) -> str:
    return " ".join(chance.choices(WORDS, k=count))
