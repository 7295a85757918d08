"""Scoring items with a model: answers come in the order of the items, with a bounded number of rows in flight.

This module does not depend on files and processes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

from hfx.answering import Answer, Model, Request, ordered_map
from hfx.errors import HfxError, RequestRefused, UsageError
from hfx.python_backends.errors import split_prefixes
from hfx.rows import RowError

Item = TypeVar("Item")
Outcome = Answer | HfxError

TOGETHER = 256  # rows per call of an encoder in this process
MOST_CHARACTERS = 4 << 20  # the most characters in the texts of such a call
FIRST_TOGETHER = 16  # rows of the first group; the size then doubles with each group, so that first answers come soon
PIPELINED = 2  # groups at a time: one group is tokenized while the net runs the other


def score(
    model: Model, items: Iterable[Item], request_of: Callable[[Item], Request], at_once: int | None = None
) -> Generator[tuple[Item, Outcome], None, None]:
    """Yield each item with its outcome: the answer to its request (see `request_of`), or the error of its row.

    At most `at_once` items are read ahead (None: enough to keep the model busy). Raises errors that are not about one
    row (see is_of_row), such as an unreachable server. Closing the generator cancels the requests in flight.
    """
    if model.answer_many is not None:
        outcomes = _together(model, items, request_of, at_once or PIPELINED * TOGETHER)
    else:
        outcomes = ordered_map(lambda item: model.answer(request_of(item)), items, at_once or model.at_once)
    with closing(outcomes):
        for item, outcome in outcomes:
            if isinstance(outcome, HfxError) and not is_of_row(outcome):
                raise outcome
            yield item, outcome


def is_of_row(error: HfxError) -> bool:
    """Return whether an error is about one row, and not about a server or this process."""
    return isinstance(error, UsageError | RequestRefused)


def reason(error: HfxError) -> str:
    """Return the text of an error cell: one line, equal for a model in this process and a model behind a server.

    A server's message includes the advice that an error of this process has in `fix`.
    """
    text = error.message
    if isinstance(error, RowError):
        text = error.reason
    elif isinstance(error, RequestRefused):
        text = f"{text} {error.fix}"
    _, text = split_prefixes(text.strip())
    return " ".join(text.split()).rstrip(".") + "."


def _together(
    model: Model, items: Iterable[Item], request_of: Callable[[Item], Request], at_once: int
) -> Generator[tuple[Item, Outcome], None, None]:
    """Score groups of rows, with one call of `answer_many` for each group."""
    answer_many = model.answer_many
    assert answer_many is not None

    def answer(group: Sequence[tuple[Item, Request | HfxError]]) -> list[Outcome]:
        requests = [request for _, request in group if not isinstance(request, HfxError)]
        answers = iter(answer_many(requests))
        return [request if isinstance(request, HfxError) else next(answers) for _, request in group]

    groups = _groups(items, request_of, max(1, at_once // PIPELINED))
    with closing(ordered_map(answer, groups, min(PIPELINED, at_once))) as answered:
        for group, outcomes in answered:
            if isinstance(outcomes, HfxError):
                raise outcomes
            for (item, _), outcome in zip(group, outcomes, strict=True):
                yield item, outcome


def _groups(
    items: Iterable[Item], request_of: Callable[[Item], Request], rows: int
) -> Iterator[list[tuple[Item, Request | HfxError]]]:
    """Yield groups of up to `rows` consecutive items. The first groups, and groups of long texts, are smaller."""
    group: list[tuple[Item, Request | HfxError]] = []
    characters, size = 0, min(rows, FIRST_TOGETHER)
    for item in items:
        try:
            request: Request | HfxError = request_of(item)
        except HfxError as error:
            request = error
        group.append((item, request))
        if not isinstance(request, HfxError):
            values = (value for values in request.values() for value in values)
            characters += sum(len(value) for value in values if isinstance(value, str))
        if len(group) == size or characters >= MOST_CHARACTERS:
            yield group
            group, characters, size = [], 0, min(rows, 2 * size)
    if group:
        yield group
