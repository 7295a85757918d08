"""How near a run came to what the machine can do at most: a row for each run with a roofline."""

from __future__ import annotations

from hfx.perf.report.numbers import number, size, spread
from hfx.perf.report.table import Table
from hfx.perf.report.tables import way
from hfx.perf.results.schema import Result, Roofline, Run
from hfx.perf.results.summary import Group, groups


def roofline_table(result: Result) -> Table:
    """What a request or token needs, the most this machine could do of them, and the share reached."""
    rows = tuple(_row(group, roof) for group in groups(result.runs) if (roof := _last(group)))
    columns = ("way", "load", "bound by", "of", "bytes each", "operations each", "limit /s", "reached")
    return Table("Against the machine's limit", columns, rows, words=4)


def _last(group: Group) -> Roofline | None:
    return next((run.roofline for run in reversed(group.runs) if run.roofline), None)


def _row(group: Group, roof: Roofline) -> tuple[str, ...]:
    def share(run: Run) -> float | None:
        return run.roofline.share if run.roofline else None

    operations = f"{number(roof.operations_each / 1e9)} G"
    reached = spread(group.spread(share), "share")
    return (
        way(group),
        group.load.label,
        roof.bound,
        roof.unit,
        size(roof.bytes_each),
        operations,
        number(roof.limit),
        reached,
    )
