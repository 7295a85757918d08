"""What is asked: requests from a data file, or synthetic ones.

A request is plain values by the names of the model's tensors, as `client.infer` takes them. It must not know when it is
sent.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hfx.errors import UsageError
from hfx.names import CANDIDATE_LABELS, QUESTION, TEXT_INPUT
from hfx.perf.load.cells import SETTINGS, Scalar, values_of
from hfx.perf.load.columns import located
from hfx.perf.load.lengths import Fixed, Lengths
from hfx.perf.load.rows import Row, read_rows
from hfx.perf.load.texts import of_tokens, of_words

Settings = Mapping[str, Scalar | Sequence[Scalar]]
LABELS: tuple[Scalar, ...] = ("sports", "politics", "travel")
QUESTION_WORDS = 8


@dataclass(frozen=True)
class Request:
    """One request: the values of each tensor."""

    inputs: Mapping[str, tuple[Scalar, ...]]


@dataclass(frozen=True)
class RequestSet:
    """Requests that are sent in turn, and from the start again when they are used up; `words` say what they are."""

    items: tuple[Request, ...]
    words: str

    def at(self, number: int) -> Request:
        """The request with this number, from 0."""
        return self.items[number % len(self.items)]


def from_file(
    path: Path,
    columns: Mapping[str, str],
    settings: Settings | None = None,
    limit: int | None = None,
    inputs: Collection[str] = SETTINGS,
) -> RequestSet:
    """A request for each of the first LIMIT rows of a CSV, TSV, JSON-lines or Parquet file.

    COLUMNS say which column is which tensor; an empty name is the tensor's own. A column named like a setting sets it
    for that request, unless its cell is empty or the model, whose INPUTS these are, does not take it; it goes before
    SETTINGS. Raises UsageError with file, line and column.
    """
    rows = read_rows(path)
    where = located(columns, rows.columns, path)
    own = {name: name for name in SETTINGS if name in inputs and name not in where}
    shared = constants(settings)
    found = []
    for row in itertools.islice(rows.rows, limit):
        texts = {tensor: _cell(path, row, tensor, column, rows.textual) for tensor, column in where.items()}
        chosen = {
            tensor: _cell(path, row, tensor, column, rows.textual)
            for tensor, column in own.items()
            if row.cells.get(column) not in (None, "")
        }
        found.append(Request(texts | shared | chosen))
    if not found:
        raise UsageError(f"{path} has columns but no row.", "Give a row for each request.")
    return RequestSet(tuple(found), _described(path, found, where, shared))


def synthetic(
    count: int,
    lengths: Lengths,
    seed: int = 0,
    settings: Settings | None = None,
    tensors: Sequence[str] = (TEXT_INPUT,),
    tokens: Callable[[str], int] | None = None,
) -> RequestSet:
    """COUNT requests with texts of drawn LENGTHS: in words, or in TOKENS exactly. The same SEED gives the same texts.

    Of several TENSORS, a question is always short and labels are always the same. Raises UsageError.
    """
    if count < 1:
        raise UsageError(f"{count} requests can't be made.", "Give at least 1.")
    chance, shared = random.Random(seed), constants(settings)

    def text(tensor: str) -> tuple[Scalar, ...]:
        if tensor == CANDIDATE_LABELS:
            return LABELS
        if tensor == QUESTION:
            return (f"{of_words(QUESTION_WORDS, chance)}?",)
        length = lengths.draw(chance)
        return (of_words(length, chance) if tokens is None else of_tokens(length, tokens, chance),)

    items = tuple(Request({tensor: text(tensor) for tensor in tensors} | shared) for _ in range(count))
    unit = "word" if tokens is None else "token"
    plural = "" if lengths == Fixed(1) else "s"
    return RequestSet(items, f"synthetic texts of {lengths.words} {unit}{plural}{_settings_words(shared)}")


def constants(settings: Settings | None) -> dict[str, tuple[Scalar, ...]]:
    """SETTINGS for every request as the values of tensors; raises UsageError."""
    return {name: values_of(name, value, textual=True) for name, value in (settings or {}).items()}


def _cell(path: Path, row: Row, tensor: str, column: str, textual: bool) -> tuple[Scalar, ...]:
    try:
        return values_of(tensor, row.cells.get(column), textual)
    except UsageError as error:
        raise UsageError(f"{path}, {row.place}, column {column!r}: {error.message}", error.fix) from None


def _described(
    path: Path, found: Sequence[Request], where: Mapping[str, str], shared: Mapping[str, tuple[Scalar, ...]]
) -> str:
    tensor, column = next(iter(where.items()))
    lengths = sorted(len(str(ask.inputs[tensor][0]).split()) for ask in found)
    noun = "request" if len(found) == 1 else "requests"
    size = f"{lengths[0]} to {lengths[-1]} words" if lengths[0] < lengths[-1] else f"{lengths[0]} words"
    return f"{path.name}, column {column}: {len(found)} {noun} of {size}{_settings_words(shared)}"


def _settings_words(shared: Mapping[str, tuple[Scalar, ...]]) -> str:
    return "".join(f", {name}={','.join(map(str, values))}" for name, values in shared.items())
