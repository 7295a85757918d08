"""`python -m bench.guard`: a few ratios to peers against the committed ones; fails where one is lower beyond noise.

Ratios and never times: peers run in the same minutes on the same machine. The models are real layers, few of them. The
committed ratios are kept for each kind of processor, because a kernel that wins on one may lose on another.

With --before, the same run first compares this version's times with those of another checkout, which runs in turn.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cases import Case, Served, Texts, callers
from bench.command import Settings
from bench.figures import Figures, load, number, save, stamped, table
from bench.peers import Way
from bench.scenarios import HFX, Scenario
from hfx.errors import HfxError, LoadFailed, UsageError
from hfx.perf.load import Closed

BASELINE = Path("bench/results/baseline.jsonl")
FLOOR = 0.10  # a change below this is none, however quiet the rounds were
WIDTH = 3.0  # standard deviations of a round that noise may reach
MAD_TO_DEVIATION = 1.4826  # of a normal distribution
LOUD = 0.5  # noise above this hides everything that matters
FEWEST = 3  # rounds that tell noise from change
FIGURE, TOO_NOISY = "requests/s", "too noisy to tell"
PEERS, BEFORE = "its peers", "the version before"  # what hfx is compared with
ROUNDS = 5  # of this version and the one before
# The families and models of processors that have a name: (vendor, family, first model, last model).
KINDS = {
    ("AuthenticAMD", 25, 0, 15): "Zen 3",
    ("AuthenticAMD", 25, 32, 95): "Zen 3",
    ("AuthenticAMD", 25, 16, 31): "Zen 4",
    ("AuthenticAMD", 25, 96, 175): "Zen 4",
    ("AuthenticAMD", 26, 0, 255): "Zen 5",
    ("GenuineIntel", 6, 143, 143): "Sapphire Rapids",
    ("GenuineIntel", 6, 207, 207): "Emerald Rapids",
}
EMULATED = "an emulated aarch64"
# What is compared with the version before: a command, its work, and hfx's ways in it, whose `ms` are compared.
COMPARED = (
    ("generate", "gpt2", ("hfx int8 native", "hfx int4 native")),
    ("encoder", "mixed", ("hfx int8",)),
    ("encoder", "encoder", ("hfx fp32", "hfx int8")),
)
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
    parser.add_argument("--write", action="store_true", help="measure and make this the processor's baseline")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="a checkout of another version, built")
    parser.add_argument("--quick", action="store_true", help="a smoke run on tiny models; its figures mean nothing")
    options = parser.parse_args(arguments)
    try:
        kind, known = processor_kind(), load(options.baseline)
        if kind == EMULATED:
            raise LoadFailed(f"There is no baseline of {kind}: an emulator's speeds say nothing of a processor's.")
        if not options.write and kind not in known:
            raise LoadFailed(f"{options.baseline} has no baseline of {kind}.", "python -m bench.guard --write")
        found: dict[str, Sequence[Change]] = {}
        if options.before:
            times = speeds(options.before, options.quick)
            found[BEFORE] = [_change(words, [1.0], each) for words, each in times.items()]
        now = stamped(Figures(), "python -m bench.guard")
        for scenario in MEASURED:
            scenario.measure(Settings(options.quick, FEWEST if options.quick else None), now)
        if options.write:
            save(options.baseline, {**known, kind: now})
        else:
            found[PEERS] = changes(known[kind], now)
            missing = ratios(known[kind]).keys() - ratios(now).keys()
            print("\n".join(f"- {words}: not measured now" for words in missing))
        judge(found)
    except HfxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def processor_kind(text: str = "", machine: str = platform.machine()) -> str:
    """The kind of this machine's processor, or of the one that `text`, of the form of /proc/cpuinfo, describes."""
    text = text or Path("/proc/cpuinfo").read_text(encoding="utf-8")
    facts = dict(re.findall(r"^(vendor_id|cpu family|model|flags|CPU \w+)\s*: (.*)$", text, re.MULTILINE))
    if machine == "aarch64" and "CPU variant" not in facts:  # qemu-user shows the file of another processor
        return EMULATED
    if "cpu family" not in facts:
        return f"{machine} implementer {facts.get('CPU implementer')} part {facts.get('CPU part')}"
    family, model = int(facts["cpu family"]), int(facts["model"])
    found = f"{facts['vendor_id']} family {family} model {model}"
    for (vendor, known, first, last), name in KINDS.items():
        if (vendor, known) == (facts["vendor_id"], family) and first <= model <= last:
            found = name
    # A virtual machine may hide them.
    amx = " without AMX" if found.endswith("Rapids") and "amx_int8" not in facts["flags"].split() else ""
    return found + amx


def judge(found: Mapping[str, Sequence[Change]]) -> None:
    """Print the ratios to PEERS and to BEFORE, each with its verdict.

    Raises Slower for any that is slower, and LoadFailed where there is nothing to compare.
    """
    for base, changed in found.items():
        rows = [
            (c.words, number(c.before), number(c.now), f"{c.moved:+.0%}", f"±{c.noise:.0%}", c.verdict) for c in changed
        ]
        names = ("ratio", "base", "now", "moved", "noise", "verdict")
        print(table(f"hfx in times of {base}, {processor_kind()}", names, rows))
        if not changed:
            raise LoadFailed(f"No ratio to {base} was measured.", "Fetch the peers: python -m bench.peers install")
        if all(each.verdict == TOO_NOISY for each in changed):
            raise LoadFailed(f"Every ratio to {base} is too noisy to tell.", "Measure again with nothing else running.")
    slower = [each for changed in found.values() for each in changed if each.verdict == "slower"]
    if slower:
        words = ", ".join(f"{each.words} ({each.moved:+.0%})" for each in slower)
        raise Slower(
            f"{len(slower)} ratios are lower than before beyond noise: {words}.",
            "Measure again with nothing else running; if it was meant: python -m bench.guard --write",
        )


def speeds(before: Path, quick: bool) -> dict[str, list[float]]:
    """How many times as fast as the checkout `before` this version is, round by round, by way and case.

    Each round is a process of its own of either version. Raises UsageError for a folder that is no checkout, and
    LoadFailed for a round that fails.
    """
    if not (before / "bench").is_dir():
        raise UsageError(f"{before} is no checkout of hfx: it has no folder bench.", "git worktree add FOLDER VERSION")
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(FEWEST if quick else ROUNDS):
            for command, work, ways in COMPARED:
                now, then = (
                    _measured(root, command, work, ways, Path(folder) / f"{name}-{command}-{turn}.jsonl", quick)
                    for name, root in (("now", Path.cwd()), ("before", before))
                )
                for way in ways:
                    for case in now.cases("ms"):
                        ours, theirs = (each.median(way, case, "ms") for each in (now, then))
                        if ours and theirs:
                            found.setdefault(f"{way}, {case}", []).append(theirs / ours)
    return found


def _measured(root: Path, command: str, work: str, ways: Sequence[str], output: Path, quick: bool) -> Figures:
    """One round of a work by the version in `root`."""
    words = [sys.executable, "-m", f"bench.{command}", work, "--rounds", "1", "--ways", ",".join(ways)]
    words += ["--output", str(output), *["--quick"] * quick]
    environment = {**os.environ, "PYTHONPATH": str(root.resolve())}
    done = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise LoadFailed(f"`bench.{command} {work}` of {root} failed: {' '.join(last)}", "Run it there by itself.")
    return load(output)[work]


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
