"""`python -m bench.guard`: a few ratios to peers against the committed ones; fails where one is lower beyond noise.

Ratios and never times: peers run in the same minutes on the same machine. The models are real layers, few of them.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cases import Case, Served, Texts, callers
from bench.command import Settings
from bench.figures import Figures, load, number, save, stamped, table
from bench.peers import Way
from bench.scenarios import HFX, Scenario
from hfx.errors import HfxError, LoadFailed
from hfx.perf.load import Closed

BASELINE = Path("bench/results/baseline.jsonl")
FLOOR = 0.10  # a change below this is none, however quiet the rounds were
WIDTH = 3.0  # standard deviations of a round that noise may reach
MAD_TO_DEVIATION = 1.4826  # of a normal distribution
LOUD = 0.5  # noise above this hides everything that matters
FEWEST = 3  # rounds that tell noise from change
FIGURE, TOO_NOISY = "requests/s", "too noisy to tell"
LABELS = tuple(
    Case(f"labels, {callers(size)}", Closed(size), Texts(lengths="fixed:64"), size, seconds=0.7) for size in (1, 8)
)
STORIES = tuple(
    Case(f"stories, {callers(size)}", Closed(size), Texts(lengths="fixed:16"), size, 3 * size, new=32)
    for size in (1, 8)
)
MEASURED = (
    Scenario(
        Served("distilbert-base", layers=(("n_layers", 2),)), LABELS, (Way("torch", "fp32"), Way("optimum", "int8")),
        rounds=7,
    ),
    Scenario(Served("distilgpt2", 16, (("n_layer", 2),)), STORIES, (Way("torch", "fp32"),), rounds=7),
)  # fmt: skip


class Slower(HfxError):
    """A ratio is lower than the baseline's beyond noise."""


@dataclass(frozen=True)
class Change:
    """How many times as fast as a peer hfx was and is (medians).

    `moved` is the change as a share (-0.2 is a fifth slower), `noise` the share that may be chance.
    """

    words: str
    before: float
    now: float
    noise: float
    moved: float
    verdict: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and compare; 1 where something is slower beyond noise."""
    parser = argparse.ArgumentParser(prog="python -m bench.guard", description="Ratios to peers against a baseline.")
    parser.add_argument("--baseline", type=Path, default=BASELINE, metavar="F.jsonl", help=f"({BASELINE})")
    parser.add_argument("--write", action="store_true", help="measure and make this the baseline")
    parser.add_argument("--quick", action="store_true", help="a smoke run on tiny models; its figures mean nothing")
    options = parser.parse_args(arguments)
    try:
        now = stamped(Figures(), "python -m bench.guard")
        for scenario in MEASURED:
            scenario.measure(Settings(options.quick, FEWEST if options.quick else None), now)
        if options.write:
            save(options.baseline, {"guard": now})
            return 0
        judge(load(options.baseline).get("guard", Figures()), now)
    except HfxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def judge(before: Figures, now: Figures) -> None:
    """Print every ratio with its verdict. Raises Slower, and LoadFailed where there is nothing to compare."""
    found = changes(before, now)
    rows = [
        (each.words, number(each.before), number(each.now), f"{each.moved:+.0%}", f"±{each.noise:.0%}", each.verdict)
        for each in found
    ]
    print(table("hfx in times of its peers", ("peer", "baseline", "now", "moved", "noise", "verdict"), rows))
    print("\n".join(f"- {words}: not measured now" for words in ratios(before).keys() - ratios(now).keys()))
    if not found:
        raise LoadFailed("No ratio of the baseline was measured.", "Fetch the peers: python -m bench.peers install")
    if all(each.verdict == TOO_NOISY for each in found):
        raise LoadFailed("Every ratio is too noisy to tell.", "Measure again with nothing else running.")
    if slower := [each for each in found if each.verdict == "slower"]:
        words = ", ".join(f"{each.words} ({each.moved:+.0%})" for each in slower)
        raise Slower(
            f"{len(slower)} of {len(found)} ratios are lower than the baseline's beyond noise: {words}.",
            "Measure again with nothing else running; if it was meant: python -m bench.guard --write",
        )


def changes(before: Figures, now: Figures) -> list[Change]:
    """Every ratio that both have, in the baseline's order."""
    old, new = ratios(before), ratios(now)
    return [_change(words, old[words], new[words]) for words in old if words in new]


def _change(words: str, before: Sequence[float], now: Sequence[float]) -> Change:
    noise = max(FLOOR, WIDTH * math.hypot(_deviation(before), _deviation(now)))
    old, new = statistics.median(before), statistics.median(now)
    moved = new / old - 1
    verdict = TOO_NOISY if noise > LOUD else "as before" if abs(moved) <= noise else "faster" if moved > 0 else "slower"
    return Change(words, old, new, noise, moved, verdict)


def _deviation(values: Sequence[float]) -> float:
    """The relative standard deviation of a round, from the median of deviations, which one disturbed round leaves."""
    middle = statistics.median(values)
    return MAD_TO_DEVIATION * statistics.median(abs(value - middle) for value in values) / middle


def ratios(figures: Figures) -> dict[str, list[float]]:
    """Requests a second over a peer's, round by round, of all that have enough rounds."""
    found: dict[str, list[float]] = {}
    for case in figures.cases(FIGURE):
        ours = figures.rounds(HFX, case, FIGURE)
        for way in figures.ways(case, FIGURE):
            theirs = figures.rounds(way, case, FIGURE)
            shared = [value / theirs[turn] for turn, value in ours.items() if theirs.get(turn)]
            if way != HFX and len(shared) >= FEWEST:
                found[f"{way}, {case}"] = shared
    return found


if __name__ == "__main__":
    sys.exit(main())
