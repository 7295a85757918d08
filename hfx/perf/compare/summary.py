"""What each side can do at its best, as a table: the load it held, what it took for that, what that costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hfx.perf.compare.cost import Best, best
from hfx.perf.compare.outcome import works
from hfx.perf.report.numbers import NOTHING, number, percent
from hfx.perf.report.table import Table, without_empty_columns
from hfx.perf.results import Result, Run

COLUMNS = (
    "way", "best load", "requests/s", "tokens/s", "goodput", "requests/s a core", "requests/s a GPU", "an hour",
    "per 1k requests", "per 1M tokens",
)  # fmt: skip
WORDS = 2


def best_table(result: Result) -> Table:
    """One row for each side (and case): its highest throughput, within the SLO where there is one."""
    rows = [row for work in works(result.runs) for row in _rows(work)]
    if len({run.load.label for run in result.runs}) < 2 and not any(run.cost for run in result.runs):
        return Table("At its best", (), ())  # one load and no prices: nothing that the comparison does not say
    table = without_empty_columns(COLUMNS, rows, keep=WORDS, nothing=NOTHING)
    return Table("At its best", table.columns, table.rows, WORDS, tuple(_break_evens(result)))


def machines_table(result: Result) -> Table:
    """Where the runs of each file were measured, of several files."""
    machines = result.details.get("machines")
    rows = [(name, str(words)) for name, words in machines.items()] if isinstance(machines, dict) else []
    return Table("Machines", ("file", "machine"), tuple(rows), WORDS)


def _rows(work: Sequence[Run]) -> list[tuple[str, ...]]:
    held = best(work)
    labels = dict.fromkeys(run.subject.label for run in work)
    return [_row(held[label]) if label in held else _nothing_held(label) for label in labels]


def _row(found: Best) -> tuple[str, ...]:
    assert found.group is not None
    costs = [run.cost for run in found.group.runs if run.cost]
    price = f"{number(costs[0].price_per_hour)} {costs[0].currency}".strip() if costs else NOTHING
    return (
        found.label,
        found.load.label,
        number(found.throughput),
        number(found.tokens_per_second),
        percent(found.kept),
        _median(found, a_core),
        _median(found, a_gpu),
        price,
        _median(found, lambda run: run.cost.per_1k_requests if run.cost else None),
        _median(found, lambda run: run.cost.per_1m_tokens if run.cost else None),
    )


def a_core(run: Run) -> float | None:
    """Requests a second for each core that the server kept busy."""
    cores = run.server.cores if run.server else None
    return run.throughput / cores if cores else None


def a_gpu(run: Run) -> float | None:
    """Requests a second for each GPU, of a side that uses them."""
    gpus = run.server.gpus if run.server else ()
    return run.throughput / len(gpus) if gpus and run.subject.device == "gpu" else None


def _nothing_held(label: str) -> tuple[str, ...]:
    return (label, "none within the SLO", *[NOTHING] * (len(COLUMNS) - WORDS))


def _median(found: Best, figure: Callable[[Run], float | None]) -> str:
    spread = found.group.spread(figure) if found.group else None
    return number(spread.median if spread else None)


def _break_evens(result: Result) -> list[str]:
    evens = result.details.get("break even")
    return [f"{words}." for words in evens.values() if isinstance(words, str)] if isinstance(evens, dict) else []
