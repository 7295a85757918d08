"""The Result of a comparison: its runs with their cost, what each side held, and where the dearer one pays.

Owns what is said beside the runs. It must not know how they were measured, or how they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hfx.manifest import created_now
from hfx.perf.compare.cost import BreakEven, Price, best, break_evens, priced, with_costs
from hfx.perf.compare.equality import equality_notes
from hfx.perf.machine import machine
from hfx.perf.report.numbers import number
from hfx.perf.results import Machine, Result, Run, groups
from hfx.perf.results.schema import Scalar


def outcome(
    title: str,
    command: str,
    runs: Sequence[Run],
    notes: Sequence[str] = (),
    prices: Mapping[str, Price] | None = None,
    base: str = "",
    where: Machine | None = None,
) -> Result:
    """RUNS as a comparison; WHERE they were measured, this machine unless given."""
    result = Result(
        kind="compare",
        title=title,
        command=command,
        created=created_now(),
        machine=where or machine(),
        runs=tuple(runs),
        base=base or (runs[0].subject.label if runs else ""),
        notes=tuple(notes),
    )
    return with_prices(replace(result, notes=(*notes, *equality_notes(groups(runs), result.base))), prices or {})


def with_prices(result: Result, prices: Mapping[str, Price]) -> Result:
    """RESULT told what its runs cost, and from which load on a dearer side pays."""
    if not prices:
        return result
    notes = list(result.notes)
    evens: dict[str, Scalar] = {}
    for work in works(result.runs):
        held, known = best(work), priced(work, prices)
        where = f" ({work[0].load.case})" if work[0].load.case else ""
        evens |= {f"{each.cheap} → {each.dear}{where}": break_even_words(each) for each in break_evens(held, known)}
        notes += [f"{label}{where} held the SLO at no load: no break-even." for label in known if label not in held]
    details = {**result.details, "break even": evens} if evens else result.details
    return replace(result, runs=with_costs(result.runs, prices), notes=tuple(notes), details=details)


def works(runs: Sequence[Run]) -> list[tuple[Run, ...]]:
    """RUNS by what was asked: a throughput is comparable only within the same work."""
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        found.setdefault((run.load.case, run.load.data), []).append(run)
    return [tuple(same) for same in found.values()]


def break_even_words(found: BreakEven) -> str:
    """A break-even load in words."""
    words = f"{found.dear} is cheaper than {found.cheap}"
    if found.first is None:
        return f"{words} at no load"
    first = f"at some loads from {number(found.first)} requests/s on"
    if found.always is None:
        return f"{words} {first}, but not in the long run"
    above = f"{words} above {number(found.always)} requests/s"
    return above if found.first == found.always else f"{above}, and {first}"
