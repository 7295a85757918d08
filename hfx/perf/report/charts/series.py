"""Groups of runs as points of series: what a load is on an axis, and which loads belong to one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hfx.perf.report.comparisons import load_key
from hfx.perf.report.tables import way
from hfx.perf.report.trials import FINAL
from hfx.perf.results.schema import Load, Result
from hfx.perf.results.summary import Group, groups

AXES = {"closed": "callers", "open": "requests/s offered", "batch": "rows a batch"}
AT_ONCE = "callers or rows at once"


@dataclass(frozen=True)
class Series:
    """One way under loads of one case, from the lightest to the heaviest; open or not."""

    name: str
    open: bool
    groups: tuple[Group, ...]

    @property
    def axis(self) -> str:
        """What its loads are numbers of."""
        return AXES[self.groups[0].load.kind]


def swept(result: Result) -> list[Series]:
    """The series with at least two loads, open ones or others, whichever are more; none of a tuning's trials."""
    if result.kind == "tune":
        return []
    found = [each for each in series(result) if len(each.groups) > 1]
    kinds = [each.open for each in found]
    return [each for each in found if each.open == max(kinds, key=kinds.count)]


def series(result: Result) -> list[Series]:
    """All series of RESULT: the loads of a way that are numbers of the same thing."""
    found: dict[tuple[str, str, str, bool], list[Group]] = {}
    for group in groups(result.runs):
        load = group.load
        if amount(load) is not None:
            found.setdefault((way(group), load.case, load.arrivals, load.kind == "open"), []).append(group)
    several = len({key[1:] for key in found}) > 1
    return [
        Series(
            ", ".join(word for word in (name, case, arrivals) if word) if several else name,
            is_open,
            tuple(sorted(members, key=lambda group: amount(group.load) or 0.0)),
        )
        for (name, case, arrivals, is_open), members in found.items()
    ]


def axis(found: Sequence[Series]) -> str:
    """The title of the axis of loads under several series."""
    titles = {each.axis for each in found}
    return titles.pop() if len(titles) == 1 else AT_ONCE


def amount(load: Load) -> float | None:
    """The load as a number on an axis: callers, requests a second or rows; None for a trace of them."""
    return load.rate if load.kind == "open" else None if load.concurrency is None else float(load.concurrency)


def ways(result: Result) -> list[str]:
    """The ways of RESULT in order: the same colour for the same way in all charts."""
    return list(dict.fromkeys(way(group) for group in compared(result) or groups(result.runs)))


def compared(result: Result) -> list[Group]:
    """The groups of a comparison of at least two ways, trials of a tuning aside."""
    found = [group for group in groups(result.runs) if result.kind != "tune" or group.load.case == FINAL]
    return found if len({way(group) for group in found}) > 1 else []


def representative(result: Result) -> list[Group]:
    """What one picture of whole runs can hold: the ways at the heaviest load that most have, or one way's loads."""
    if several := compared(result):
        loads = [load_key(group.load) for group in several]
        common = [load for load in dict.fromkeys(loads) if loads.count(load) == max(map(loads.count, loads))]
        return [group for group in several if load_key(group.load) == common[-1]]
    return [] if result.kind == "tune" else groups(result.runs)


def names(found: Sequence[Group]) -> list[str]:
    """FOUND in words: loads of one way, ways under one load, or both."""
    one_way, one_load = len({way(group) for group in found}) == 1, len({load_key(group.load) for group in found}) == 1
    if one_way and not one_load:
        return [group.load.label for group in found]
    return [way(group) if one_load and not one_way else f"{way(group)}, {group.load.label}" for group in found]


def under(found: Sequence[Group]) -> str:
    """The one load of several ways, for a title; nothing of other groups, whose names say their loads."""
    loads = {group.load.label for group in found}
    return f", {loads.pop()}" if len(loads) == 1 and len({way(group) for group in found}) > 1 else ""


def some(found: Sequence[Group], most: int) -> list[Group]:
    """At most MOST of FOUND, evenly over the whole, first and last included."""
    if len(found) <= most:
        return [*found]
    return [found[round(index * (len(found) - 1) / (most - 1))] for index in range(most)]
