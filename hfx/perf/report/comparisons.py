"""Several ways under the same loads as one table: medians over rounds, and ratios to the base taken round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hfx.perf.compare.equality import unequal
from hfx.perf.report.figures import COMPARED, PARTS, Figure, present
from hfx.perf.report.numbers import NOTHING, heading, ratio_spread, spread
from hfx.perf.report.table import Table, without_empty_columns
from hfx.perf.report.tables import way
from hfx.perf.results.schema import Load, Result
from hfx.perf.results.summary import Group, Spread, groups, ratios

SHORT = 10  # characters of a base that is named in the heads of ratios; a longer one only in the note
RATIOS = ("throughput", "tokens", "p50", "p99", "ttft p50", "tpot p50")  # figures of which ratios are shown


def comparison_table(result: Result, names: tuple[str, ...] = COMPARED, base: str = "") -> Table:
    """One row for each load and way; where BASE (or the result's) was run under that load, ratios to it.

    A ratio above 1 is more of the figure: better for a throughput, worse for a time. What was not run is in the notes.
    """
    found = groups(result.runs)
    base = base or result.base
    figures = present(names, result.runs)
    columns = ["load", "way"]
    for figure in figures:
        columns.append(heading(figure.title, figure.unit))
        columns += [over(figure, base)] if base and figure.name in RATIOS else []
    rows = [_row(group, base_of(group, found, base), figures, base) for group in by_load(found)]
    if not rows:
        return Table("Comparison", (), (), 2, result.notes)
    table = without_empty_columns(columns, rows, keep=2, nothing=NOTHING)
    return Table("Comparison", table.columns, table.rows, 2, (*_meaning(found, base), *result.notes))


def comparison_tables(result: Result, base: str = "") -> list[Table]:
    """`comparison_table` in parts that fit a terminal: throughput, latency, tokens, server; notes under the last."""
    tables = [replace(comparison_table(result, names, base), title=title, notes=()) for title, names in PARTS.items()]
    tables = [table for table in tables if len(table.columns) > 2]
    notes = (*_meaning(groups(result.runs), base or result.base), *result.notes)
    return [*tables[:-1], replace(tables[-1], notes=notes)] if tables else [Table("Comparison", (), (), 2, notes)]


def over(figure: Figure, base: str) -> str:
    """The head of a ratio's column."""
    return f"{figure.title} / {base}" if len(base) <= SHORT else f"{figure.title} ratio"


def load_key(load: Load) -> tuple[str, str, float | None]:
    """What makes loads equal between ways: 8 callers who wait, or 8 requests at once, are held against 8 rows."""
    if load.rate is None and load.concurrency is not None:
        return load.case, "", load.concurrency
    return load.case, f"{load.kind} {load.arrivals}", load.rate


def by_load(found: Sequence[Group]) -> list[Group]:
    """FOUND so that those of one load stand together, loads and ways in order of their first appearance."""
    loads = list(dict.fromkeys(load_key(group.load) for group in found))
    return sorted(found, key=lambda group: loads.index(load_key(group.load)))


def base_of(group: Group, found: Sequence[Group], base: str) -> Group | None:
    """The group that GROUP is held against: the base under the same load, of the same model where there are several."""
    same = [each for each in found if each.subject.label == base and load_key(each.load) == load_key(group.load)]
    own = [each for each in same if each.subject.model == group.subject.model]
    return next(iter(own or same), None)


def ratio_of(group: Group, found: Sequence[Group], base: str, figure: Figure) -> Spread | None:
    """FIGURE of GROUP over the base's; None for the base itself, where there is none, and after other work."""
    return _ratio(group, base_of(group, found, base), figure)


def _row(group: Group, of_base: Group | None, figures: Sequence[Figure], base: str) -> tuple[str, ...]:
    cells = [group.load.label, way(group)]
    for figure in figures:
        cells.append(spread(group.spread(figure.of), figure.unit))
        if base and figure.name in RATIOS:
            cells.append(ratio_spread(_ratio(group, of_base, figure)))
    return tuple(cells)


def _ratio(group: Group, of_base: Group | None, figure: Figure) -> Spread | None:
    if of_base is None or of_base is group or unequal(group, of_base):
        return None
    return ratios(group, of_base, figure.of)


def _meaning(found: Sequence[Group], base: str) -> tuple[str, ...]:
    rounds = max((len(group.runs) for group in found), default=0)
    words = [f"Medians of {rounds} rounds (least–most)."] if rounds > 1 else []
    if any(base_of(group, found, base) not in (None, group) for group in found):
        words.append(f"Ratios are to {base}, {'round by round' if rounds > 1 else 'under the same load'}.")
    return tuple(words)
