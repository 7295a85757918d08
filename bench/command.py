"""What the commands have in common: works that are chosen by name, their options, and the report of their figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.child import Child
from bench.figures import Figures, Goal, goals_table, load, machine_line, noted, save, say, stamped, ways_table
from bench.peers import Model, Way
from hfx.errors import HfxError, UsageError

KEPT = "build/bench/{}.jsonl"  # where a command's figures are without --output


@dataclass(frozen=True)
class Settings:
    """How much is measured. `rounds`: other than usual; `ways`: words of which one is in the label of each way."""

    quick: bool = False
    rounds: int | None = None
    ways: tuple[str, ...] = ()

    def turns(self, usual: int) -> int:
        """Rounds of a work that usually has so many."""
        return self.rounds or (1 if self.quick else usual)

    def chosen(self, ways: Iterable[Way]) -> list[Way]:
        """Those of `ways` that take part."""
        return [way for way in ways if not self.ways or any(word in way.label for word in self.ways)]


@dataclass(frozen=True)
class Work:
    """A measurement that fills figures, and their report: columns, hfx's ways, the figure they are compared by."""

    title: str
    measure: Callable[[Settings, Figures], None]
    columns: tuple[str, ...]
    ours: tuple[str, ...] = ()
    figure: str = ""
    goals: tuple[Goal, ...] = ()
    published: str = ""


def run(
    prog: str,
    works: Mapping[str, Work],
    arguments: Sequence[str] | None = None,
    kept: Path | None = None,
    title: Callable[[str, str], str] = lambda name, date: name,
) -> int:
    """The command `python -m bench.PROG`. 0 also when a goal is missed: this is a measurement, not a test.

    `kept` is where figures are without --output; KEPT, where it is None. A work's figures replace those with the same
    `title(work, date)`.
    """
    kept = kept or Path(KEPT.format(prog))
    parser = argparse.ArgumentParser(prog=f"python -m bench.{prog}", description=f"Works: {', '.join(works)}.")
    parser.add_argument("works", metavar="WORK", nargs="*", help="all without it")
    parser.add_argument("--rounds", type=int, metavar="N", help="turns of each way")
    parser.add_argument("--ways", default="", metavar="A,B", help="only ways with one of these words, such as hfx,int4")
    parser.add_argument("--quick", action="store_true", help="a smoke run on tiny models; its figures mean nothing")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="F.jsonl",
        help=f"put the figures, as they come, to those in this file ({kept}; none with --quick)",
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.works if name not in works]:
        parser.error(f"no work {', '.join(unknown)}: choose of {', '.join(works)}")
    words = tuple(word.strip() for word in options.ways.split(",") if word.strip())
    settings = Settings(options.quick, options.rounds, words)
    output = options.output or (None if options.quick else kept)
    try:
        results = load(output) if output else {}
        keep = partial(save, output, results) if output else lambda: None
        for name in options.works or works:
            command = f"python -m bench.{prog} {name}" + " --quick" * settings.quick
            figures = stamped(Figures(keep=keep), command)
            results[title(name, figures.stamp["created"][:10])] = figures
            try:
                works[name].measure(settings, figures)
            finally:  # what failed or was interrupted has figures too
                keep()
                print(report(works, {name: figures}), flush=True)
    except HfxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def report(works: Mapping[str, Work], results: Mapping[str, Figures]) -> str:
    """Every work that was measured, as Markdown."""
    parts = []
    for name in [name for name in works if name in results]:
        work, figures = works[name], results[name]
        parts += [f"## {name}", "", f"{work.title}.", "", machine_line(figures), ""]
        parts += [ways_table(figures, case, work.columns, work.ours, work.figure) for case in figures.cases()]
        parts += [
            goals_table(work.goals, figures),
            work.published,
            "".join(f"- {subject}: {note}\n" for subject, note in figures.notes.items()),
        ]
    return "\n".join(parts)


def open_ways(ways: Sequence[Way], checkpoint: Path, figures: Figures, stack: ExitStack) -> dict[str, Child]:
    """Those that can be opened, by label; conversions, which take much memory, come before all openings."""
    model, found = Model.of(checkpoint), dict[str, Child]()
    for opening in (False, True):
        for way in [way for way in ways if way.label not in figures.notes]:
            with noted(figures, way.label):
                say(f"{'opening' if opening else 'converting for'} {way.label}")
                if opening:
                    found[way.label] = stack.enter_context(way.open(model))
                else:
                    way.folder(model)
    return found


def write_page(page: Path, text: str, mark: str) -> None:
    """Put `text` between the two marks of a page. Raises UsageError for a page without them."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    try:
        head, rest = page.read_text(encoding="utf-8").split(begin)
        tail = rest.split(end)[1]
    except (OSError, ValueError, IndexError) as error:
        raise UsageError(f"{page} has no lines {begin} and {end}.", "Add them where the figures belong.") from error
    page.write_text(f"{head}{begin}\n\n{text.strip()}\n\n{end}{tail}", encoding="utf-8")
