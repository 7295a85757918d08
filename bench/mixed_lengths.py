"""`python -m bench.mixed_lengths`: ways to batch texts of mixed lengths, under the load of 64 callers, in one run.

Every way is the same exported int8 model with another batching, served by a Triton of its own that is silent until it
is its turn. Figures are medians over the rounds. This file owns what is compared; the edits stand in variants.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import checkpoints, variants
from bench.encoder_texts import Mix, mix
from bench.report import Goal, goals, machine, machine_line, number, table, write_json
from bench.repositories import Edit, chosen_runtime, export, variant
from bench.serving import Served, Servers, asks_of
from hfx import names

TEXTS = 1024
NAME = "mixed"
LEAST_BATCH, LEAST_GAIN = 16.0, 1.5


@dataclass(frozen=True)
class Way:
    """A way to batch: what is changed in the exported net, and the widths that texts are padded to (none: hfx's)."""

    title: str
    edits: tuple[Edit, ...] = ()
    widths: tuple[int, ...] = ()


# The first is what the others are compared with.
WAYS = {
    "buckets": Way("buckets 16, 32, 64, ... on the padded graph", (variants.padded,), (16, 32, 64, 128, 256, 512)),
    "own-buckets": Way("hfx's widths on the padded graph", (variants.padded,)),
    "few": Way("few widths: 32, 128, 512", (), (32, 128, 512)),
    "one-run": Way("flat graph, the whole mix in one run", (variants.one_run,)),
    "hfx": Way("hfx: flat graph, one run a width"),
}


@dataclass(frozen=True)
class Settings:
    """How long is measured."""

    rounds: int = 5
    requests: int = 600
    callers: int = 64


QUICK = Settings(rounds=1, requests=100, callers=16)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print Markdown, write JSON. 0 also when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.mixed_lengths", description="How mixed lengths batch.")
    parser.add_argument("--quick", action="store_true", help="a smoke run on a tiny model; its figures mean nothing")
    parser.add_argument("--rounds", type=int, help="turns of each way (5)")
    parser.add_argument("--output", type=Path, metavar="F.json", help="write all figures there")
    options = parser.parse_args(arguments)
    settings = QUICK if options.quick else Settings()
    settings = replace(settings, rounds=options.rounds or settings.rounds)
    facts, texts = machine(), mix(TEXTS)
    print(f"{machine_line(facts)}\n\n{texts.description}; {settings.callers} callers.\n")
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hfx-bench-") as folder:
        for title, checkpoint, scale in _checkpoints(Path(folder), texts, options.quick):
            lengthened = replace(settings, requests=settings.requests * scale)
            home = Path(folder) / title
            runtime, figures = _measure(home, checkpoint, texts, lengthened)
            print(_render(f"{title}, int8 on {runtime}", figures), flush=True)
            rounds = {way: [asdict(served) for served in found] for way, found in figures.items()}
            results.append({"model": title, "runtime": runtime, "ways": rounds})
    if options.output:
        write_json(options.output, {"machine": facts, "texts": texts.description, "models": results})
    return 0


def _checkpoints(folder: Path, texts: Mix, quick: bool) -> list[tuple[str, Path, int]]:
    """(title, checkpoint, how many times as many requests as of the large one take about as long)."""
    if quick:
        return [("tiny", checkpoints.with_vocabulary(checkpoints.tiny(folder), texts.source, folder / "tokenized"), 1)]
    large = checkpoints.with_vocabulary(checkpoints.full_size(), texts.source, folder / "tokenized")
    return [("distilbert-base", large, 1), ("sentiment-distilbert", checkpoints.small(), 4)]


def _measure(home: Path, checkpoint: Path, texts: Mix, settings: Settings) -> tuple[str, dict[str, list[Served]]]:
    repository = home / "repository"
    manifest = export(checkpoint, repository, NAME, "int8")
    for name, way in WAYS.items():
        variant(repository, NAME, name, *way.edits, widths=_known(repository, way.widths))
    asks = asks_of(texts.texts)
    figures: dict[str, list[Served]] = {name: [] for name in WAYS}
    with Servers(repository, tuple(WAYS)) as servers:
        for name in WAYS:
            servers.warm(name, asks, settings.callers)
        for turn in range(settings.rounds):
            print(f"round {turn + 1} of {settings.rounds}", file=sys.stderr, flush=True)
            for name in WAYS:
                figures[name].append(servers.measure(name, asks, settings.callers, settings.requests))
    return chosen_runtime(manifest), figures


def _known(repository: Path, widths: Sequence[int]) -> tuple[int, ...]:
    """Those of `widths` that the model can read, its longest the last; none when none are given."""
    if not widths:
        return ()
    from hfx.python_backends.settings import Settings as TokenizeSettings

    longest = TokenizeSettings.read(repository / (NAME + names.TOKENIZE_SUFFIX) / "1" / "settings.json").max_length
    return (*(width for width in widths if width < longest), longest)


def _render(title: str, figures: dict[str, list[Served]]) -> str:
    first = next(iter(WAYS))
    rows = []
    for name, way in WAYS.items():
        found = figures[name]
        columns = (_median([getattr(served, key) for served in found]) for key in Served.__dataclass_fields__)
        rows.append((way.title, *(number(column) for column in columns), number(_gain(figures, name))))
    header = ("way", "requests/s", "p50 ms", "p99 ms", "net batch", f"x {WAYS[first].title.split()[0]}")
    ours = figures["hfx"]
    wanted = (
        Goal(f"{title}: rows in an average batch of the net", _median([s.batch for s in ours]), least=LEAST_BATCH),
        Goal(f"{title}: times the throughput of plain buckets", _gain(figures, "hfx"), least=LEAST_GAIN),
    )
    return table(title, header, rows) + "\n" + goals(wanted)


def _gain(figures: dict[str, list[Served]], name: str) -> float:
    """Throughput against the first way's in the same round: what slows a whole round down cancels out."""
    pairs = zip(figures[name], figures[next(iter(WAYS))], strict=True)
    return _median([ours.requests_per_second / theirs.requests_per_second for ours, theirs in pairs])


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    sys.exit(main())
