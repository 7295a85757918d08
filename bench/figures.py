"""The figures of a benchmark by round, with their medians, ratios and goals, as a JSON file and as Markdown tables.

Ratios are medians of the ratios within a round, so that what slows a whole round down cancels out.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from operator import sub, truediv
from pathlib import Path
from typing import Any, Literal, TypeVar

from hfx.errors import HfxError, UsageError
from hfx.perf.machine import machine as this_machine

Key = tuple[str, str, str]  # (way, case, figure)
PACKAGES = (
    "hfx", "torch", "transformers", "onnxruntime", "onnxruntime-gpu", "tritonclient", "nvidia-pytriton",
)  # fmt: skip
BUSY = 1.0  # load average at the start, from which on other work was going on
FAILURES = (HfxError, OSError, ValueError)
T = TypeVar("T")


@dataclass
class Figures:
    """All figures of one benchmark: {(way, case, figure): {round: value}}.

    `notes` say what did not run and why; `stamp` has machine, versions and date. `keep` is called when figures came.
    """

    values: dict[Key, dict[int, float]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    stamp: dict[str, Any] = field(default_factory=dict)
    keep: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def add(self, way: str, case: str, turn: int, **figures: float | None) -> None:
        """Figures of round `turn`, by name (`_` stands for a blank); None is left out."""
        for name, value in figures.items():
            if value is not None:
                self.values.setdefault((way, case, name.replace("_", " ")), {})[turn] = value
        self.keep()

    def rounds(self, *key: str) -> dict[int, float]:
        """The value of each round of (way, case, figure); empty where nothing was measured."""
        return self.values.get((key[0], key[1], key[2]), {})

    def median(self, way: str, case: str, figure: str) -> float | None:
        """Over the rounds; None where nothing was measured."""
        return _median(self.rounds(way, case, figure).values())

    def spread(self, way: str, case: str, figure: str) -> str:
        """Median (least-most) in words, `-` where nothing was measured."""
        values = self.rounds(way, case, figure).values()
        if not values:
            return "-"
        ends = f" ({number(min(values))}–{number(max(values))})" if len(values) > 1 else ""
        return number(_median(values)) + ends

    def ratio(self, over: Key, under: Key, compute: Callable[[float, float], float] = truediv) -> float | None:
        """`over` in times of `under`, or `compute` of them: median over the rounds that both took part in."""
        first, second = self.values.get(over, {}), self.values.get(under, {})
        return _median([compute(value, second[turn]) for turn, value in first.items() if second.get(turn)])

    def cases(self, figure: str = "") -> list[str]:
        """The cases that have `figure` (empty: any), in the order of measurement."""
        return list(dict.fromkeys(key[1] for key in self.values if figure in ("", key[2])))

    def ways(self, case: str = "", figure: str = "") -> list[str]:
        """The ways that have `figure` in `case` (empty: any), in the order of measurement."""
        return list(dict.fromkeys(key[0] for key in self.values if case in ("", key[1]) and figure in ("", key[2])))


@dataclass(frozen=True)
class Goal:
    """What `figure` of a way in `case` should be: at `least`, or at `most`.

    With `against`, other ways: the ratio to theirs or the difference. Of several ways the best of each side counts
    (`lower`: the one with the lowest figure), and `inverse` turns the ratio round: how many times as fast.
    """

    case: str
    figure: str
    ways: tuple[str, ...]
    least: float | None = None
    most: float | None = None
    against: tuple[str, ...] = ()
    relation: Literal["ratio", "inverse", "difference"] = "ratio"
    lower: bool = False

    def judge(self, figures: Figures) -> tuple[str, float | None, bool | None]:
        """(words, value, whether it is met); None where it was not measured."""
        way, other = self._best(figures, self.ways), self._best(figures, self.against)
        name = way or " or ".join(self.ways)
        words = f"{self.case}, {name}: {self.figure}"
        key, base = (way, self.case, self.figure), (other, self.case, self.figure)
        if not self.against:
            value = figures.median(*key)
        elif self.relation == "difference":
            words, value = f"{words} above {other or self.against[0]}", figures.ratio(key, base, sub)
        elif self.relation == "inverse":
            words = f"{self.case}, {self.figure}: {name} is x times as fast as {other or ' or '.join(self.against)}"
            value = figures.ratio(base, key)
        else:
            words = f"{words}, in times of {other or self.against[0]}"
            value = figures.ratio(key, base)
        if value is None:
            return words, None, None
        return words, value, value >= self.least if self.least is not None else value <= (self.most or 0.0)

    def _best(self, figures: Figures, ways: Sequence[str]) -> str:
        found = {way: value for way in ways if (value := figures.median(way, self.case, self.figure)) is not None}
        return (min if self.lower else max)(found, key=lambda way: found[way], default="")


def goals_table(goals: Iterable[Goal], figures: Figures) -> str:
    """The goals with what was measured, as Markdown."""
    rows = []
    for goal in goals:
        words, value, met = goal.judge(figures)
        wanted = f"≥ {goal.least:g}" if goal.least is not None else f"≤ {goal.most:g}"
        rows.append((words, {True: "met", False: "missed", None: "not measured"}[met], number(value), wanted))
    return table("Goals", ("goal", "verdict", "measured", "wanted"), rows) if rows else ""


def number(value: float | None) -> str:
    """Three significant digits, `-` for None."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:#.3g}"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table under a heading."""
    lines = [f"### {title}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


def ways_table(figures: Figures, case: str, columns: Sequence[str], ours: Sequence[str] = (), figure: str = "") -> str:
    """A row for each way in `case`: medians of `columns`, and how many times as fast as it the best of `ours` is.

    That is by `figure`, which is a time (its name ends with ms) or a rate.
    """
    shown = [name for name in columns if any(figures.rounds(way, case, name) for way in figures.ways(case))]
    ms = figure.endswith("ms")
    known = {way: value for way in ours if (value := figures.median(way, case, figure)) is not None}
    best = (min if ms else max)(known, key=lambda way: known[way], default="")
    beside = bool(best) and len(figures.ways(case, figure)) > 1
    rows = []
    for way in figures.ways(case):
        keys = (way, case, figure), (best, case, figure)
        times = (number(figures.ratio(*(keys if ms else keys[::-1]))),) if beside else ()
        rows.append((way, *(figures.spread(way, case, name) for name in shown), *times))
    return table(case, ("candidate", *shown, *((f"{best} is x",) if beside else ())), rows)


def stamped(figures: Figures, command: str = "") -> Figures:
    """`figures` with this machine, its load now, the versions and the date; call it before the measurement."""
    found = this_machine()
    figures.stamp = {
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": found.processor,
        "cores": found.cores,
        "load": found.load,
        "versions": {name: found.versions[name] for name in PACKAGES if name in found.versions},
        **gpu_facts(),
    }
    return figures


def gpu_facts() -> dict[str, str]:
    """The name of this machine's first `gpu` and its `driver`; empty where nvidia-smi knows none."""
    command = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(("gpu", "driver"), (part.strip() for part in text.partition("\n")[0].split(",")), strict=False))


def machine_line(figures: Figures) -> str:
    """The machine in a sentence."""
    stamp = figures.stamp
    versions = ", ".join(f"{name} {version}" for name, version in stamp["versions"].items())
    load = stamp.get("load")  # None where it was not recorded
    busy = " The machine had other work: trust ratios, not times." if load is not None and load > BUSY else ""
    gpu = f"{stamp['gpu']}, driver {stamp['driver']}; " if "gpu" in stamp else ""
    loaded = "" if load is None else f", load {load:.2f} at the start"
    return f"{gpu}{stamp['processor']}, {stamp['cores']} cores{loaded}; {versions}.{busy}"


def load(path: Path) -> dict[str, Figures]:
    """What `save` wrote; empty where there is no file. Raises UsageError for another file."""
    works: dict[str, Figures] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            value = json.loads(line)
            if isinstance(value, dict):
                name = value.pop("name")
                current = works[name] = Figures(**value)
            else:
                *key, found = value
                current.values[tuple(key)] = {int(turn): each for turn, each in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError, NameError) as error:
        raise UsageError(f"{path} is no file of figures: {error!r}.", "Measure again, with --output.") from error
    return works


def save(path: Path, works: dict[str, Figures]) -> None:
    """JSON lines: of each benchmark its stamp and notes, then a line for each figure."""
    lines: list[object] = []
    for name, figures in works.items():
        lines.append({"name": name, "stamp": figures.stamp, "notes": figures.notes})
        for key, found in figures.values.items():
            lines.append([*key, {str(turn): float(f"{value:.6g}") for turn, value in found.items()}])
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(f"{path.name}.new")  # a benchmark that is killed leaves the file as it was
    whole.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines), encoding="utf-8")
    whole.replace(path)


def take_turns(
    figures: Figures,
    title: str,
    cases: Mapping[str, T],
    ways: Mapping[str, Callable[[T], Mapping[str, float | None]]],
    count: int,
    skipped: Callable[[str, str, int], bool] = lambda way, case, turn: False,
    patience: float | None = None,
) -> None:
    """Every way measures every case in each of `count` rounds; each way begins as often as the others.

    A way that fails twice has no more turns in that case. `skipped(way, case, turn)` leaves turns out. After two rounds
    no other begins once `patience` seconds have passed. After the first round, the cases have another order in each,
    which is the same at every call.
    """
    begin = time.perf_counter()
    for turn in range(count):
        if turn > 1 and patience is not None and time.perf_counter() - begin > patience:
            return
        say(f"{title}: round {turn + 1} of {count}")
        for name, case in random.Random(turn).sample([*cases.items()], len(cases)) if turn else cases.items():
            for way in rotated(list(ways), turn):
                if f"{way}, {name}" not in figures.notes and not skipped(way, name, turn):
                    add_measured(figures, way, name, turn, partial(ways[way], case))


def add_measured(
    figures: Figures, way: str, case: str, turn: int, measure: Callable[[], Mapping[str, float | None]]
) -> None:
    """Add what `measure` gives. It is repeated once where it fails; that, and a second failure, are notes."""
    title = f"{way}, {case}"
    try:
        found = measure()
    except FAILURES as error:
        figures.notes[f"{title}, round {turn + 1}"] = f"repeated after: {_reason(error)}"
        say(f"{title}: {_reason(error)}; once more")
        with noted(figures, title):
            figures.add(way, case, turn, **measure())
    else:
        figures.add(way, case, turn, **found)


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """The order of a round."""
    return [items[(turn + at) % len(items)] for at in range(len(items))]


@contextmanager
def noted(figures: Figures, title: str) -> Iterator[None]:
    """A failure inside becomes a note on `title`."""
    try:
        yield
    except FAILURES as error:
        figures.notes[title] = f"not run: {_reason(error)}"
        say(f"{title}: {figures.notes[title]}")


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def _reason(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", error)).split())


def _median(values: Iterable[float]) -> float | None:
    return statistics.median(found) if (found := list(values)) else None
