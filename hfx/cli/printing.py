"""Prints the answers of `hfx infer`, as JSON or as lines for people: all at once, as they come, or in pieces.

Each function here takes outcomes entry by entry, and raises the failure of an entry (for JSON lines, at the end).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from hfx import names
from hfx.cli.output import Reporter, error_body
from hfx.cli.reading import ID, Entry
from hfx.errors import HfxError
from hfx.names import GENERATION_TASKS, Task
from hfx.tasks import TASKS

if TYPE_CHECKING:
    from hfx.answering import Piece

Result = Mapping[str, Any]
LONG = {Task.TOKEN_CLASSIFICATION: "chunk", Task.TEXT_CLASSIFICATION: "mean"}
Outcomes = Iterable[tuple[Entry, Result | HfxError]]


def lines(task: Task, outcomes: Outcomes, report: Reporter) -> None:
    """Print each answer as lines for people, as it comes. Raises the first failure at once."""
    for entry, outcome in outcomes:
        result = _succeeded(entry, outcome)
        report.lines(TASKS[task].lines(result))
        _warn_of_truncation(task, entry, result.get(names.TRUNCATED_TOKENS), report)


def one_object(name: str, task: Task, outcomes: Outcomes, report: Reporter) -> None:
    """Print all answers, and the time that they took, as one object. Raises the first failure at once."""
    began = time.perf_counter()
    results = []
    for entry, outcome in outcomes:
        results.append(_succeeded(entry, outcome))
        _warn_of_truncation(task, entry, results[-1].get(names.TRUNCATED_TOKENS), report)
    latency = (time.perf_counter() - began) * 1000
    report.result({"model": name, "results": results, "latency_ms": round(latency, 3)}, "")


def rows(outcomes: Outcomes, report: Reporter) -> None:
    """Print each answer, or its error, as a line of JSON. Raises the first failure, if there is one, at the end."""
    first: HfxError | None = None
    failed = total = 0
    for entry, outcome in outcomes:
        total += 1
        own = {} if entry.id is None else {ID: entry.id}
        if isinstance(outcome, HfxError):
            error = located(outcome, entry.place)
            first, failed = first or error, failed + 1
            report.row({**own, "error": error_body(error, error.exit_code)})
        else:
            report.row({**own, **outcome})
    if first is not None:
        raise first.with_message(f"{failed} of {total} lines failed. {first.message}")


def pieces(
    task: Task, entries: Iterable[Entry], stream: Callable[[Entry], Generator[Piece, None, None]], report: Reporter
) -> None:
    """Print each text in pieces as it comes: for people, with a newline after each text; with --json, as JSON lines.

    Raises the first failure at once.
    """
    for index, entry in enumerate(entries):
        truncated = 0
        try:
            with closing(stream(entry)) as coming:
                for piece in coming:
                    report.row(_piece_values(index, piece)) if report.json else report.piece(piece.text)
                    truncated = max(truncated, piece.truncated_tokens)
        except HfxError as error:
            raise located(error, entry.place) from error
        finally:
            if not report.json:
                report.piece("\n")
        _warn_of_truncation(task, entry, truncated, report)


def single_values(outcomes: Outcomes, is_single: Callable[[Entry], bool]) -> Outcomes:
    """Yield `outcomes`, with single values for label and score, instead of lists, if `is_single` holds for an entry."""
    for entry, outcome in outcomes:
        if not isinstance(outcome, HfxError) and is_single(entry) and len(outcome[names.LABEL]) == 1:
            outcome = {**outcome, names.LABEL: outcome[names.LABEL][0], names.SCORE: outcome[names.SCORE][0]}
        yield entry, outcome


def _piece_values(index: int, piece: Piece) -> dict[str, Any]:
    """Return a piece of text `index` under the names of output tensors; only the last piece has counts."""
    from hfx.python_backends.generation.pieces import prompt_outputs, token_outputs

    values: dict[str, Any] = {"index": index, names.TEXT_OUTPUT: piece.text}
    if piece.log_probs:
        values[names.OUTPUT_LOG_PROBS] = list(piece.log_probs)
    if piece.tokens:
        values |= token_outputs(piece.tokens)
    values |= prompt_outputs(piece.prompt_tokens)
    if piece.finish_reason:
        values |= {
            names.FINISH_REASON: piece.finish_reason,
            names.INPUT_TOKENS: piece.input_tokens,
            names.OUTPUT_TOKENS: piece.output_tokens,
            names.TRUNCATED_TOKENS: piece.truncated_tokens,
        }
    return values


def located(error: HfxError, place: str) -> HfxError:
    """Return ERROR with the place of its entry in front of the message."""
    return error.with_message(f"{place}: {error.message}") if place else error


def _succeeded(entry: Entry, outcome: Result | HfxError) -> Result:
    if isinstance(outcome, HfxError):
        raise located(outcome, entry.place)
    return outcome


def _warn_of_truncation(task: Task, entry: Entry, dropped: int | None, report: Reporter) -> None:
    if dropped:
        what = entry.place or "The text"
        report.warn(f"{what} is too long for the model: {dropped} tokens or more were cut. {_whole_text(task)}")


def _whole_text(task: Task) -> str:
    """Return advice for a text that is too long to be read as a whole."""
    if task is Task.TEXT_GENERATION:
        return "Give a shorter text; `--long error` refuses such texts instead."
    if task in GENERATION_TASKS:
        return "`--long chunk` reads all of it."
    if task in LONG:
        return f"`--long {LONG[task]}` reads all of it, unless the model was exported by an earlier version."
    return "Divide it to have all of it read."
