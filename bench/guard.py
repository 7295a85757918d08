"""`python -m bench.guard`: a few ratios to peers, held against the committed ones; says what moved beyond noise.

Ratios and never absolute times: peers run in the same minutes on the same machine, so a slow machine slows both. The
models are real layers, few of them. Owns the decision what noise is. How a ratio is measured is bench.scenarios'.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.errors import PerformanceRegression
from bench.machine import machine
from bench.scenarios import Case, Model, Options, PeerWay, Scenario, run_scenario
from bench.scenarios.scenario import Key
from bench.scenarios.texts import Texts
from bench.scenarios.verdicts import grouped
from hfx.errors import HfxError, LoadFailed
from hfx.names import MAX_TOKENS, Task
from hfx.perf.load import Closed
from hfx.perf.report.numbers import number
from hfx.perf.report.tables import Table, to_lines
from hfx.perf.results import Group, Result, read_result, write_result

BASELINE = Path("bench/results/baseline.json")
FLOOR = 0.10  # a change below this is none, however quiet the rounds were
WIDTH = 3.0  # standard deviations of a round that noise may reach
MAD_TO_DEVIATION = 1.4826  # of a normal distribution
LOUD = 0.5  # noise above this hides everything that matters
FEWEST = 3  # rounds that tell noise from change

LABELS = tuple(
    Case("labels", Closed(size), Texts("lengths", lengths="fixed:64"), rows=size, seconds=0.7) for size in (1, 8)
)
STORIES = tuple(
    Case("stories", Closed(size), Texts("lengths", lengths="fixed:16"), rows=size, requests=3 * size,
         settings={MAX_TOKENS: 32})
    for size in (1, 8)
)  # fmt: skip
MEASURED = (
    Scenario(
        "labels", "labels of texts of 64 tokens, two layers of distilbert-base",
        Model("distilbert-base", Task.TEXT_CLASSIFICATION, config={"n_layers": 2}),
        LABELS, (PeerWay("torch", "fp32"), PeerWay("optimum", "int8")), (), rounds=7,
    ),
    Scenario(
        "stories", "32 tokens after 16, two layers of distilgpt2",
        Model("distilgpt2", Task.TEXT_GENERATION, slots=16, config={"n_layer": 2}),
        STORIES, (PeerWay("torch", "fp32"),), (), rounds=7,
    ),
)  # fmt: skip
TOO_NOISY = "too noisy to tell"


@dataclass(frozen=True)
class Change:
    """How many times as fast as a peer hfx was, and is: medians; `noise` is the share that may be chance."""

    words: str
    before: float
    now: float
    noise: float

    @property
    def moved(self) -> float:
        """The change as a share: -0.2 is a fifth slower."""
        return self.now / self.before - 1

    @property
    def verdict(self) -> str:
        """What is to be said of it."""
        if self.noise > LOUD:
            return TOO_NOISY
        if abs(self.moved) <= self.noise:
            return "as before"
        return "faster" if self.moved > 0 else "slower"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and compare; 1 where something is slower beyond noise."""
    parser = argparse.ArgumentParser(prog="python -m bench.guard", description="Ratios to peers against a baseline.")
    parser.add_argument("--baseline", type=Path, default=BASELINE, metavar="F.json", help=f"({BASELINE})")
    parser.add_argument("--write", action="store_true", help="measure and make this the baseline")
    parser.add_argument("--output", type=Path, metavar="F.json", help="keep what was measured")
    options = parser.parse_args(arguments)
    try:
        before = None if options.write else read_result(options.baseline)
        now = measured()
        for target in (options.output, options.baseline if options.write else None):
            if target:
                write_result(now, target)
        if before is not None:
            judge(before, now)
    except HfxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def measured(rounds: int | None = None) -> Result:
    """One Result of all MEASURED."""
    options = Options(
        rounds=rounds,
        command="python -m bench.guard",
        say=lambda text: print(text, file=sys.stderr),
        machine=machine(rates=True),
    )
    found = [run_scenario(scenario, options) for scenario in MEASURED]
    return replace(
        found[0],
        title="Ratios to peers, quickly measured",
        runs=tuple(run for result in found for run in result.runs),
        notes=tuple(note for result in found for note in result.notes),
        details={"scenario": "guard"},
    )


def judge(before: Result, now: Result) -> None:
    """Print every ratio with what became of it.

    Raises PerformanceRegression, and LoadFailed where there is nothing to compare.
    """
    found = changes(before, now)
    rows = tuple(
        (each.words, number(each.before), number(each.now), f"{each.moved:+.0%}", f"±{each.noise:.0%}", each.verdict)
        for each in found
    )
    columns = ("hfx in times of", "baseline", "now", "moved", "noise", "verdict")
    notes = [*now.notes, *_elsewhere(before, now), *(f"{words}: not measured now" for words in _missing(before, now))]
    print("\n".join(to_lines(Table("", columns, rows, notes=tuple(notes)))))
    if not found:
        raise LoadFailed("No ratio of the baseline was measured.", "Fetch the peers: python -m bench.peers install")
    if all(each.verdict == TOO_NOISY for each in found):
        raise LoadFailed(
            "Every ratio differs so much from round to round that nothing can be told.",
            "Measure again with nothing else running.",
        )
    if slower := [each for each in found if each.verdict == "slower"]:
        words = ", ".join(f"{each.words} ({each.moved:+.0%})" for each in slower)
        raise PerformanceRegression(
            f"{len(slower)} of {len(found)} ratios are lower than the baseline's beyond noise: {words}.",
            "Measure again with nothing else running; if it was meant: python -m bench.guard --write",
        )


def changes(before: Result, now: Result) -> list[Change]:
    """Every ratio that both have, in the baseline's order."""
    old, new = _ratios(before), _ratios(now)
    return [_change(words, old[words], new[words]) for words in old if words in new]


def _change(words: str, before: Sequence[float], now: Sequence[float]) -> Change:
    noise = max(FLOOR, WIDTH * math.hypot(_deviation(before), _deviation(now)))
    return Change(words, statistics.median(before), statistics.median(now), noise)


def _deviation(values: Sequence[float]) -> float:
    """The relative standard deviation of a round, from the median of deviations: one disturbed round is no matter."""
    middle = statistics.median(values)
    return MAD_TO_DEVIATION * statistics.median(abs(value - middle) for value in values) / middle


def _ratios(result: Result) -> dict[str, list[float]]:
    """Requests a second over a peer's, round by round, of all that have enough rounds."""
    found = grouped(result.runs)
    named = {
        f"{group.subject.label}, {_case(key)}": _by_round(found[key, result.base], group)
        for (key, label), group in found.items()
        if label != result.base and (key, result.base) in found
    }
    return {words: values for words, values in named.items() if len(values) >= FEWEST}


def _by_round(ours: Group, theirs: Group) -> list[float]:
    base = {run.round: run.throughput for run in theirs.runs}
    return [run.throughput / base[run.round] for run in ours.runs if base.get(run.round)]


def _case(key: Key) -> str:
    name, size = key
    return f"{name} for {size:g} caller{'s' * (size != 1)}"


def _missing(before: Result, now: Result) -> list[str]:
    known = _ratios(now)
    return [words for words in _ratios(before) if words not in known]


def _elsewhere(before: Result, now: Result) -> list[str]:
    """Ratios travel between machines better than times, but not perfectly."""
    one, other = before.machine, now.machine
    if (one.processor, one.cores) == (other.processor, other.cores):
        return []
    return [f"The baseline is of {one.processor} with {one.cores} cores, this is {other.processor} with {other.cores}."]


if __name__ == "__main__":
    sys.exit(main())
