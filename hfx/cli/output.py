"""The Reporter, which prints a command's text, progress and JSON.

With --json, stdout gets exactly one JSON object (one on each line for a command of JSON lines), and everything else
goes to stderr. Without it, results go to stdout. The module does not know what the results mean.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any

import typer

from hfx.errors import HfxError

SECONDS = 10.0  # between two lines of progress, if stderr is not a terminal


@dataclass(frozen=True)
class Reporter:
    """A command's only way to print. `json`: one object on stdout; `debug`: tracebacks; `verbose`: all details."""

    json: bool = False
    debug: bool = False
    verbose: bool = False
    _results: list[str] = field(default_factory=list, init=False, repr=False)  # not empty: stdout has its object

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Reporter:
        """Return the reporter for a command line; words after `--` are not options."""
        options = arguments[: arguments.index("--")] if "--" in arguments else arguments
        return cls("--json" in options, "--debug" in options, "--verbose" in options)

    @property
    def output(self) -> IO[str]:
        """The file to which other programs that the command runs print for people."""
        return sys.stderr if self.json else sys.stdout

    def result(self, value: Mapping[str, Any], text: str | Iterable[str]) -> None:
        """Print the outcome on stdout: with --json VALUE, else TEXT (a string, or lines)."""
        if self.json:
            _print_json(value)
            self._results.append("printed")
        else:
            self.lines([text] if isinstance(text, str) else text)

    def lines(self, texts: Iterable[str]) -> None:
        """Print lines of an outcome for people on stdout, each as it comes."""
        for text in texts:
            print(visible(text), flush=True)

    def row(self, value: Mapping[str, Any]) -> None:
        """Print one of many outcomes on stdout: VALUE as a line of JSON."""
        _print_json(value)

    def table(self, value: Mapping[str, Any], columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print the outcome as an aligned table with the head COLUMNS and the ROWS; with --json, print VALUE."""
        cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(columns))]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
        self.result(value, (line.rstrip() for line in lines))

    def piece(self, text: str) -> None:
        """Print a part of a text for people on stdout, without a newline."""
        print(visible(text), end="", flush=True)

    def note(self, text: str) -> None:
        """Print a line on stderr. Errors of the output, such as a closed pipe, are ignored."""
        with suppress(OSError):
            print(visible(text), file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """Print a warning on stderr."""
        self.note(f"Warning: {text}")

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner with the last message on a terminal; elsewhere, print each message as a line on stderr.

        Yields the function that takes messages.
        """
        if not sys.stderr.isatty():
            self.note(title)
            yield self.note
            return
        from rich.console import Console
        from rich.text import Text

        with Console(stderr=True).status(Text(title)) as status:
            yield lambda message: status.update(Text(f"{title}: {visible(message)}"))

    def numbered(self, total: int) -> Callable[[str], AbstractContextManager[Callable[[str], None]]]:
        """Return a function that takes the title of the next of TOTAL steps, and returns a context manager for it.

        The context manager yields a function that takes messages about the progress.

        Each step leaves a line on stderr: `[2/9] Title`. On a terminal, the line has the time that the step took;
        elsewhere, a long step prints its progress every SECONDS.
        """
        numbers = itertools.count(1)

        @contextmanager
        def step(title: str) -> Iterator[Callable[[str], None]]:
            label = f"[{next(numbers)}/{total}] {title}"
            began = time.perf_counter()
            if not sys.stderr.isatty():
                self.note(label)
                yield self._now_and_then(label)
                return
            try:
                with _running(label) as show:
                    yield show
            finally:
                self.note(f"{label:<50} {time.perf_counter() - began:5.1f} s")

        return step

    def _now_and_then(self, label: str) -> Callable[[str], None]:
        """Return a function that prints its text on stderr if SECONDS have passed since the last time."""
        last = time.monotonic()

        def show(text: str) -> None:
            nonlocal last
            if time.monotonic() - last >= SECONDS:
                last = time.monotonic()
                self.note(f"{label}: {text}")

        return show

    @contextmanager
    def steps(self, title: str, total: int) -> Iterator[Callable[[], None]]:
        """Show a bar of TOTAL steps on a terminal; elsewhere, print the title, and the progress every SECONDS.

        Yields the function that counts a step.
        """
        if not sys.stderr.isatty():
            self.note(f"{title} ({total} steps)")
            began, show, numbers = time.monotonic(), self._now_and_then(title), itertools.count(1)

            def count() -> None:
                done = next(numbers)
                left = (time.monotonic() - began) / done * (total - done)
                show(f"{done} of {total} steps, {left:.0f} s left")

            yield count
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=total)
            yield lambda: bar.advance(task)

    def failure(self, error: HfxError, code: int, *, kind: str = "", cause: BaseException | None = None) -> int:
        """Print what happened and what to do next; return CODE. KIND names an error that is not one of hfx's.

        With --json, the error is the one object on stdout, unless stdout already has a result (findings, or a part of a
        run).
        """
        if self.debug:
            traceback.print_exception(cause or error)
        if self.json and not self._results:
            _print_json({"error": error_body(error, code, kind)})
        print(visible(f"Error: {error.message}"), file=sys.stderr)
        if error.fix:
            print(visible(error.fix), file=sys.stderr)
        return code


@contextmanager
def _running(label: str) -> Iterator[Callable[[str], None]]:
    """Show LABEL with the seconds so far on a terminal, and remove it at the end; yield a function for progress."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), SpinnerColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda text: progress.update(task, description=f"{label}: {visible(text)}")


def reporter(context: typer.Context) -> Reporter:
    """Return the reporter of this run."""
    registered = context.find_object(Reporter)
    return registered if registered is not None else Reporter()


def error_body(error: HfxError, code: int, kind: str = "") -> dict[str, Any]:
    """Return an error as programs read it; KIND names an error that is not one of hfx's."""
    return {"type": kind or type(error).__name__, "message": error.message, "fix": error.fix, "exit_code": code}


def _print_json(value: Mapping[str, Any]) -> None:
    readable = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(value, ensure_ascii=not readable, allow_nan=False)
    # A lone surrogate (from a damaged argument) has no UTF-8, but its escape is valid JSON.
    print("".join(f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in text), flush=True)


def visible(text: str) -> str:
    """Return TEXT with control characters replaced, because a model's output must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() or character in "\n\t" else "\ufffd" for character in text)


def counted(count: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
