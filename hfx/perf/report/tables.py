"""The tables of a Result, as values and as lines for a terminal or Markdown, and the trials of a tuning.

Figures are medians over rounds with their range. A ratio is the median of the ratios within each round.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len

from hfx.perf.compare.cost import GOOD_SHARE, best, by_work
from hfx.perf.report.figures import (
    COMPARED,
    FIGURES,
    FORMATS,
    NOTHING,
    RUN,
    SERVER,
    Figure,
    main,
    milliseconds,
    number,
    present,
    size,
    spread,
)
from hfx.perf.results import PHASES, Machine, Result, Run, Step
from hfx.perf.rounds import Group, Spread, groups, ratios, steps
from hfx.perf.settings import settings_line

NUMBER = re.compile(r"[0-9.,]+")
BUSY = 0.5  # load average per core at the start; above it, the machine had other work
SHORT = 10  # longest name of a base that fits into headings of ratios; longer names are only in a note
BEST = ("throughput", "tokens", "goodput", "throughput a core", "cost 1m requests", "cost 1m tokens")
RATIOS = ("throughput", "tokens", "p50", "p99", "ttft p50", "tpot p50")  # figures for which ratios are shown


@dataclass(frozen=True)
class Table:
    """Rows of cells under headings. The first `text_columns` are aligned left, and the others (numbers) right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rows or self.notes)


def to_lines(table: Table) -> list[str]:
    """Format `table` for a terminal: title, aligned rows, notes. A single variant is moved into the title."""
    variants = {row[0] for row in table.rows}
    if table.columns[:1] == ("variant",) and len(variants) == 1:
        rows = tuple(row[1:] for row in table.rows)
        title = f"{table.title}: {variants.pop()}"
        table = replace(table, title=title, columns=table.columns[1:], rows=rows, text_columns=table.text_columns - 1)
    lines = [table.title] if table and table.title else []
    if table.rows:
        cells = [table.columns, *table.rows]
        widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
        lines += [_line(row, widths, table.text_columns) for row in cells]
    return [*lines, *(f"  {note}" for note in table.notes)]


def run_table(result: Result, names: Sequence[str] = RUN) -> Table:
    """Return the client's view: a row for each variant and load, with the measured figures of `names`."""
    found = groups(result.runs)
    figures = present(names, result.runs)
    rows = [(name_of(group), group.load.label, _answered(group), *_cells(group, figures)) for group in found]
    columns = ("variant", "load", "answered", *(figure.heading for figure in figures))
    return Table("Load", columns, tuple(rows), 2, _rounds(found))


def comparison_tables(result: Result) -> list[Table]:
    """Return a table for each part of COMPARED, with a row for each load and variant, and ratios to the base.

    A ratio above 1 is better for a throughput, and worse for a time. The notes of the result follow the last table.
    """
    found = by_load(groups(result.runs))
    tables = [_comparison(result, found, title) for title in COMPARED]
    tables = [table for table in tables if len(table.columns) > 2 and table.rows]
    notes = _rounds(found)
    if any(base_of(group, found, result.base) not in (None, group) for group in found):
        notes += (f"Ratios are to {result.base}, taken within each round.",)
    last = tables.pop() if tables else Table("Comparison", (), ())
    return [*tables, replace(last, notes=(*notes, *result.notes))]


def server_table(result: Result) -> Table:
    """Return the server's view: batch, cores, memory, GPUs. Empty if nothing is known."""
    figures = present(SERVER, result.runs)
    rows = [
        (name_of(group), group.load.label, *_cells(group, figures))
        for group in groups(result.runs)
        if any(group.spread(figure.of) for figure in figures)
    ]
    return Table("Server", ("variant", "load", *(figure.heading for figure in figures)), tuple(rows), 2)


def steps_table(result: Result) -> Table:
    """Return the mean times of a request (ms, over all rounds) in each model of the server."""
    rows = [
        (name_of(group), group.load.label, step.model, *_times(step), number(step.batch), f"{step.executions:,}")
        for group in groups(result.runs)
        for step in steps(group.runs)
    ]
    columns = ("variant", "load", "model", *(f"{phase} ms" for phase in PHASES), "batch", "executions")
    return Table("Steps of the server", columns, tuple(rows), 3)


def best_table(result: Result) -> Table:
    """Return a row for each variant: its highest throughput (within the SLO, if any), and its cost.

    Empty for one load without prices, because the table would repeat the comparison.
    """
    if len({run.load.label for run in result.runs}) < 2 and not any(run.cost for run in result.runs):
        return Table("At its best", (), ())
    rows = []
    for work in by_work(result.runs):
        held = best(work)
        rows += [_best(label, held.get(label)) for label in dict.fromkeys(run.subject.label for run in work)]
    columns = (
        "variant", "best load", "requests/s", "tokens/s", "goodput", "requests/s per core", "price per hour",
        "per 1M requests", "per 1M tokens",
    )  # fmt: skip
    evens = result.details.get("break even")
    notes = tuple(f"{sentence}." for sentence in evens.values()) if isinstance(evens, dict) else ()
    return _without_empty_columns(Table("At its best", columns, tuple(rows), 2, notes))


def trials_table(result: Result) -> Table:
    """Return the trials of a tuning, with settings and verdicts."""
    figures = trial_figures(result)
    rows = [
        (trial.label, trial.settings or NOTHING, trial.verdict, *_cells(trial.group, figures))
        for trial in trials(result)
    ]
    return Table("Trials", ("trial", "settings", "verdict", *(figure.heading for figure in figures)), tuple(rows), 3)


def machine_table(machine: Machine, title: str = "Machine") -> Table:
    """Return the facts of a machine, and its package versions."""
    rows = [
        ("processor", f"{machine.processor}, {machine.cores} cores"),
        ("memory", size(machine.memory)),
        ("system", machine.system),
        *(("GPU", gpu) for gpu in machine.gpus),
        *machine.versions.items(),
    ]
    return Table(title, ("what", "value"), tuple(rows), 2)


def machines_table(result: Result) -> Table:
    """Return the machine of each merged file."""
    machines = result.details.get("machines")
    rows = [(name, str(machine)) for name, machine in machines.items()] if isinstance(machines, dict) else []
    return Table("Machines", ("file", "machine"), tuple(rows), 2)


def warnings(result: Result) -> tuple[str, ...]:
    """Return warnings about the figures: failures, saturation and notes of runs, then other work on the machine."""
    found = [(f"{name_of(group)}, {group.load.label}", group) for group in groups(result.runs)]
    failures = [f"{name}: {failed}" for name, group in found if (failed := _failures(group.runs))]
    load = number(result.machine.load)
    work = [f"The machine had other work at the start (load average {load})."] if is_busy(result.machine) else []
    return (*failures, *_cautions([group for _, group in found]), *result.notes, *work)


def is_busy(machine: Machine) -> bool:
    """Return whether the machine had other work when the measurement began."""
    return machine.load > machine.cores * BUSY


# Shared with charts and the answer


def name_of(group: Group) -> str:
    """Return a variant's name: its label, and the tool unless it is hfx's own."""
    subject = group.subject
    name = subject.label or subject.model
    return name if subject.tool == "builtin" else f"{name} by {subject.tool}"


def by_load(found: Sequence[Group]) -> list[Group]:
    """Return `found` sorted by load. Loads are in order of first appearance."""
    loads = list(dict.fromkeys(group.load.label for group in found))
    return sorted(found, key=lambda group: loads.index(group.load.label))


def base_of(group: Group, found: Sequence[Group], base: str) -> Group | None:
    """Return the base's group under the same load, preferably of the same model."""
    same = [each for each in found if each.subject.label == base and each.load.label == group.load.label]
    own = [each for each in same if each.subject.model == group.subject.model]
    return next(iter(own or same), None)


def ratio_of(group: Group, found: Sequence[Group], base: str, figure: Figure) -> Spread | None:
    """Return the ratio of `figure` to the base's figure; None for the base itself, and without a base."""
    partner = base_of(group, found, base)
    is_own = partner is None or (partner.subject, partner.load) == (group.subject, group.load)
    return None if partner is None or is_own else ratios(group, partner, figure.of)


# Cells


def _cells(group: Group, figures: Iterable[Figure]) -> list[str]:
    return [spread(group.spread(figure.of), figure.unit) for figure in figures]


def _times(step: Step) -> list[str]:
    return [milliseconds(getattr(step, phase)) for phase in PHASES]


def _comparison(result: Result, found: Sequence[Group], title: str) -> Table:
    figures = present(COMPARED[title], result.runs)
    columns, cells = ["load", "variant"], [[group.load.label, name_of(group)] for group in found]
    for figure in figures:
        columns.append(figure.heading)
        with_ratio = bool(result.base) and figure.name in RATIOS
        if with_ratio:
            columns.append(f"{figure.title} / {result.base}" if len(result.base) <= SHORT else f"{figure.title} ratio")
        for row, group in zip(cells, found, strict=True):
            row.append(spread(group.spread(figure.of), figure.unit))
            row += [spread(ratio_of(group, found, result.base, figure), "ratio")] if with_ratio else []
    return _without_empty_columns(Table(title, tuple(columns), tuple(map(tuple, cells)), 2))


def _best(label: str, held: Group | None) -> tuple[str, ...]:
    if held is None:
        return label, "none within the SLO", *[NOTHING] * 7
    cells = [FORMATS[FIGURES[name].unit](held.median(FIGURES[name].of)) for name in BEST]
    costs = [run.cost for run in held.runs if run.cost]
    if not costs:
        return label, held.load.label, *cells[:4], NOTHING, *cells[4:]
    amounts = (number(costs[0].price_per_hour), *cells[4:])
    money = (f"{costs[0].currency}{amount}" if amount != NOTHING else NOTHING for amount in amounts)
    return label, held.load.label, *cells[:4], *money


def _without_empty_columns(table: Table) -> Table:
    kept = [
        index
        for index in range(len(table.columns))
        if index < table.text_columns or any(row[index] not in ("", NOTHING) for row in table.rows)
    ]
    columns, *rows = (tuple(row[index] for index in kept) for row in (table.columns, *table.rows))
    return replace(table, columns=columns, rows=tuple(rows))


def _answered(group: Group) -> str:
    succeeded, sent = (sum(getattr(run.requests, name) for run in group.runs) for name in ("succeeded", "sent"))
    return f"{sent:,}" if succeeded == sent else f"{succeeded:,} of {sent:,}"


def _rounds(found: Sequence[Group]) -> tuple[str, ...]:
    most = max((len(group.runs) for group in found), default=0)
    return (f"Medians of {most} rounds (least–most).",) if most > 1 else ()


def _failures(runs: Sequence[Run]) -> str:
    """Return the number of failed requests and their kinds, with a message of each kind; empty if none failed."""
    kinds, messages = Counter[str](), dict[str, str]()
    for run in runs:
        kinds.update(run.requests.errors)
        kinds["timed out"] += run.requests.timeouts
        messages |= run.requests.words
    messages["timed out"] = messages.get("RequestTimeout", "")
    parts = [
        f"{times:,} {kind}" + (f" ({messages[kind].rstrip('.')})" if messages.get(kind) else "")
        for kind, times in kinds.items()
        if times
    ]
    failed, sent = sum(run.requests.failed for run in runs), sum(run.requests.sent for run in runs)
    return f"{failed:,} of {sent:,} requests failed{': ' * bool(parts)}{', '.join(parts)}." if failed else ""


def _cautions(found: Sequence[Group]) -> list[str]:
    """Return the notes of runs. Notes that differ only in numbers appear once, with the other loads."""
    alike: dict[tuple[str, str], dict[str, str]] = {}
    for group in found:
        for note in (note for run in group.runs for note in _notes(run)):
            alike.setdefault((name_of(group), NUMBER.sub("", note)), {}).setdefault(group.load.label, note)
    lines = []
    for (name, _), notes in alike.items():
        (load, note), *others = notes.items()
        also = f" The same at {', '.join(other for other, _ in others)}." if others else ""
        lines.append(f"{name}, {load}: {note.rstrip('.')}.{also}")
    return lines


def _notes(run: Run) -> list[str]:
    return [
        *([run.client.saturated] if run.client and run.client.saturated else []),
        *(["interrupted: the figures cover the requests until then."] if run.interrupted else []),
        *(["did not become stable."] if run.stable is False else []),
        *run.notes,
    ]


def _line(row: Sequence[str], widths: Sequence[int], text_columns: int) -> str:
    padded = []
    for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
        space = " " * (width - cell_len(cell))
        padded.append(cell + space if index < text_columns else space + cell)
    return "  ".join(padded).rstrip()


# The trials of a tuning

FINAL = "final"  # the case name of the runs that prove the gain


@dataclass(frozen=True)
class Trial:
    """A trial: its settings, throughput (`rate`), and `p99` in milliseconds.

    `verdict` is "before" (the published settings), "chosen", "misses" (too few requests met the SLO), "unbeaten" (on
    the Pareto front, so `best` is set) or "beaten".
    """

    label: str
    settings: str
    group: Group
    rate: float
    p99: float
    best: bool
    verdict: str


def trial_figures(result: Result) -> tuple[Figure, Figure]:
    """Return the figures by which trials are compared: throughput (see `main`), and p99."""
    return main(result.runs), FIGURES["p99"]


def proof(result: Result) -> Result:
    """Return `result`, but of a tuning only the final rounds, which compare the published with the chosen settings.

    The base is removed, because ratios in tables could contradict the proven ratio of the verdict.
    """
    if result.kind != "tune":
        return result
    final = (run for run in result.runs if run.load.case == FINAL)
    return replace(result, base="", runs=tuple(replace(run, load=replace(run.load, case="")) for run in final))


def trials(result: Result) -> list[Trial]:
    """Return the measured trials of a tuning, in order. Empty for other results."""
    if result.kind != "tune":
        return []
    rate, p99 = trial_figures(result)
    measured = [
        (group, (more, less), "" if all(run.good_share >= GOOD_SHARE for run in group.runs) else "misses")
        for group in groups([run for run in result.runs if run.load.case != FINAL])
        if (more := group.median(rate.of)) is not None and (less := group.median(p99.of)) is not None
    ]
    full = [point for _, point, fault in measured if not fault]
    names = {result.details.get("chosen"): "chosen", result.base: "before"}
    found = []
    for group, point, fault in measured:
        label, best = group.subject.label, not fault and not beaten(point, full)
        verdict = names.get(label) or fault or ("unbeaten" if best else "beaten")
        found.append(Trial(label, settings_line(group.subject.settings), group, *point, best, verdict))
    return found


def beaten(point: tuple[float, float], points: Sequence[tuple[float, float]]) -> bool:
    """Return whether one of `points` dominates `point`.

    The first coordinate is to be maximized, the second minimized.
    """
    return any(each != point and each[0] >= point[0] and each[1] <= point[1] for each in points)
