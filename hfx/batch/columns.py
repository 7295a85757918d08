"""The columns that a job adds to its rows: a task's answers as cells, errors, and facts of each row.

Cells are plain values; a float is one of float32, whose shortest decimal text is what CSV and JSON lines get.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hfx import names
from hfx.answering import Model, Request
from hfx.errors import UsageError
from hfx.metadata import INT32_MAX
from hfx.names import GENERATION_TASKS, Task
from hfx.tasks import TASKS
from hfx.tasks.task import Column, as_float32, compact, output

ROW = "row"
ERROR = "error"
TOKENS = "tokens"
TOKEN = ("id", "text", "logprob", "special")


def prediction_columns(task: Task, labels: Sequence[str], settings: Request, prefix: str = "") -> tuple[Column, ...]:
    """The columns of a task's predictions, `prefix` before their names; `labels` are those of a classifier.

    `settings` are the tensors that all requests have: they decide whether there are log-probabilities and tokens.
    """
    columns = TASKS[task].columns(labels)
    if task in GENERATION_TASKS and settings.get(names.RETURN_LOG_PROBS) == [True]:
        columns = (*columns, Column(names.OUTPUT_LOG_PROBS, "numbers", lambda answer: answer[names.OUTPUT_LOG_PROBS]))
    if task in GENERATION_TASKS and names.LOGPROBS in settings:
        columns = (*columns, Column(TOKENS, "json", lambda answer: compact(_tokens(answer))))
    return tuple(replace(column, name=prefix + column.name) for column in columns)


def fact_columns(task: Task) -> tuple[Column, ...]:
    """What the output says of each row besides its prediction and its error."""
    truncated = output(names.TRUNCATED_TOKENS, "integer")
    return (truncated, output(names.FINISH_REASON, "text")) if task in GENERATION_TASKS else (truncated,)


def labels_of(model: Model, settings: Request) -> tuple[str, ...]:
    """The labels of a classifier, sorted, as its answer to a short text has them; empty for other tasks."""
    if not TASKS[model.task].has_all_labels:
        return ()
    request = {names.TEXT_INPUT: [TASKS[model.task].probe], **all_labels(model.task), **settings}
    labels: list[str] = model.answer(request)[names.LABEL]
    if len(set(labels)) < len(labels):
        raise UsageError("Two classes of this model have the same label.", "Give them different names in id2label.")
    return tuple(sorted(labels))


def all_labels(task: Task) -> Request:
    """The setting by which a classifier answers with all of its labels."""
    return {names.TOP_K: [INT32_MAX]} if TASKS[task].has_all_labels else {}


def as_float32s(values: Sequence[float]) -> list[float]:
    """`as_float32` of each value, by arrays: numpy takes four times as long to write a float32 as Python for a float.

    A short decimal is a whole number divided by a power of ten. Both are exact up to 1e22: the quotient is the double
    with that text.
    """
    import numpy as np

    floats = np.array(values, np.float32)
    shortest, size = floats.astype(np.float64), np.abs(floats)
    fits = (size >= 1e-13) & (size < 1e5)
    exponents = np.floor(np.log10(np.where(fits, size, 1), dtype=np.float64)).astype(np.int64)
    powers = np.array([float(f"1e{exponent}") for exponent in range(23)])
    for digits in (9, 8, 7, 6):  # nine are always enough, and six hold all that were written with fewer
        scale = powers[digits - 1 - exponents]
        rounded = np.rint(floats * scale) / scale
        shortest = np.where(fits & (rounded.astype(np.float32) == floats), rounded, shortest)
    found: list[float] = shortest.tolist()
    for at in np.flatnonzero(~fits):
        found[at] = as_float32(floats[at])
    return found


def _tokens(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tokens of a text, each with its alternatives."""
    tables = [answer[name] for name in (names.TOKEN_IDS, names.TOKEN_TEXTS, names.TOKEN_LOG_PROBS, names.TOKEN_SPECIAL)]
    rows = [
        [dict(zip(TOKEN, each, strict=True)) for each in zip(*row, strict=True)] for row in zip(*tables, strict=True)
    ]
    return [{**token, "top": top} for token, *top in rows]
