"""Goals of the laboratory with their verdicts, figures of others, and tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hfx.perf.report.numbers import number
from hfx.perf.report.tables import Table
from hfx.perf.results import Result
from hfx.perf.results.schema import Scalar

GOAL = "goal: "  # prefix of `Result.details`: "goal: words" -> {"value": 2.1, "least": 1.8} or {"value": …, "most": …}


@dataclass(frozen=True)
class Goal:
    """What was wanted of a figure: at least `least`, or at most `most`. `value` None: it was not measured."""

    words: str
    value: float | None
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether it was reached; None where it was not measured."""
        if self.value is None:
            return None
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    def detail(self) -> dict[str, Scalar]:
        """The value under `GOAL + words` in `Result.details`."""
        known = {"value": self.value, "least": self.least, "most": self.most}
        return {name: value for name, value in known.items() if value is not None}


def goals(result: Result) -> tuple[Goal, ...]:
    """The goals that `Result.details` holds."""
    found = []
    for name, detail in result.details.items():
        if name.startswith(GOAL) and isinstance(detail, dict):
            values = {key: _float(detail.get(key)) for key in ("value", "least", "most")}
            found.append(Goal(name.removeprefix(GOAL), **values))
    return tuple(found)


def goals_table(wanted: Sequence[Goal]) -> Table:
    """Goals with their verdicts; "not measured" is no verdict."""
    verdicts = {True: "met", False: "missed", None: "not measured"}
    rows = tuple((goal.words, verdicts[goal.met], number(goal.value), _wanted(goal)) for goal in wanted)
    return Table("Goals", ("goal", "verdict", "measured", "wanted"), rows, words=2)


def published_table(result: Result) -> Table:
    """Figures of others, by others: never part of a ratio."""
    rows = tuple(
        (each.subject, each.load, each.figure, each.source, f"{number(each.value)} {each.unit}".strip())
        for each in result.published
    )
    notes = ("Measured by others on other machines: for orientation, no ratio is taken of them.",) if rows else ()
    return Table("Published by others", ("what", "load", "figure", "source", "value"), rows, words=4, notes=notes)


def to_markdown(table: Table) -> str:
    """TABLE as Markdown, without its title; a cell's own bars, brackets and line breaks do no harm."""
    lines = []
    if table.rows:
        rules = ["---" if index < table.words else "---:" for index in range(len(table.columns))]
        lines = [_row(table.columns), "|" + "|".join(rules) + "|", *map(_row, table.rows)]
    if table.notes:
        lines += [*([""] if lines else []), *(f"- {_escaped(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n" if lines else ""


def _wanted(goal: Goal) -> str:
    least = [f"≥ {number(goal.least)}"] if goal.least is not None else []
    most = [f"≤ {number(goal.most)}"] if goal.most is not None else []
    return ", ".join([*least, *most])


def _float(value: Scalar | None) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escaped, cells)) + " |"


def _escaped(text: str) -> str:
    flat = " ".join(text.split())
    for character in "\\|<[`*_":
        flat = flat.replace(character, f"\\{character}")
    return flat
