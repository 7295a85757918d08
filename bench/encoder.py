"""`python -m bench.encoder`: a classifier of distilbert-base's size through Triton, its bare session, and its peers.

One run, in rounds: every way gets its turn in each, in a process of its own, so a noisy machine disturbs all alike.
Figures are medians over the rounds. This file owns what is compared; the ways stand in ours.py, peers.py, serving.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench import encoder_checkpoints as checkpoints
from bench import encoder_peers as peers
from bench import encoder_report
from bench.encoder_peers import Case
from bench.encoder_texts import of_length
from bench.errors import OpenFailed
from bench.ours import open_published, token_counter
from bench.peers.resident import Resident
from bench.report import machine, machine_line, write_json
from bench.repositories import chosen_runtime, export
from bench.serving import Servers, asks_of
from hfx.errors import FetchFailed
from hfx.perf.load import RequestSet


@dataclass(frozen=True)
class Settings:
    """What is measured, and for how long."""

    precisions: tuple[str, ...] = ("fp32", "int8")
    widths: tuple[int, ...] = (16, 128)
    batches: tuple[int, ...] = (1, 8, 32)
    peer_batches: tuple[int, ...] = (1, 8)
    concurrencies: tuple[int, ...] = (1, 16, 64)
    rounds: int = 5
    seconds: float = 0.4
    served_seconds: float = 2.0


QUICK = Settings(("int8",), (16,), (1, 32), (1,), (1, 16), rounds=1, seconds=0.1, served_seconds=0.3)

# (way, level or "served", precision, tokens, batch or concurrency, figure) -> one value a round
Key = tuple[str, str, str, int, int, str]
Figures = dict[Key, list[float]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print Markdown, write JSON. 0 also when a goal is missed: this is a measurement, not a test."""
    parser = argparse.ArgumentParser(prog="python -m bench.encoder", description="Encoders through Triton, and peers.")
    parser.add_argument("--quick", action="store_true", help="a smoke run on a tiny model; its figures mean nothing")
    parser.add_argument("--rounds", type=int, help="turns of each way (5)")
    parser.add_argument("--no-peers", action="store_true", help="leave out the other libraries")
    parser.add_argument("--output", type=Path, metavar="F.json", help="write all figures there")
    options = parser.parse_args(arguments)
    settings = QUICK if options.quick else Settings()
    settings = replace(settings, rounds=options.rounds or settings.rounds)
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="hfx-bench-") as folder:
        bench = _Bench(settings, Path(folder), options.quick)
        figures, notes = bench.run(with_peers=not options.no_peers)
    medians = {key: statistics.median(values) for key, values in figures.items()}
    print(f"{machine_line(facts)}\n")
    print(encoder_report.render(medians, settings, notes))
    if options.output:
        rows = [{**encoder_report.labels(key), "median": medians[key], "rounds": figures[key]} for key in figures]
        goals = [{"goal": g.words, "value": g.value, "met": g.met} for g in encoder_report.goals(medians, settings)]
        write_json(options.output, {"machine": facts, "notes": notes, "goals": goals, "figures": rows})
    return 0


class _Bench:
    """The run: models exported into `folder`, then all rounds."""

    def __init__(self, settings: Settings, folder: Path, tiny: bool) -> None:
        self.settings = settings
        self.folder = folder
        self.repository = folder / "repository"
        self.checkpoint = checkpoints.tiny(folder) if tiny else checkpoints.full_size()
        self.figures: Figures = defaultdict(list)
        self.notes: dict[str, str] = {}

    def run(self, with_peers: bool) -> tuple[Figures, dict[str, str]]:
        """All figures, and what is to be said beside them."""
        for precision in self.settings.precisions:
            manifest = export(self.checkpoint, self.repository, precision, precision)
            self.notes[f"hfx {precision}"] = f"runtime {chosen_runtime(manifest)}"
        with self._opened(with_peers) as ways, self._served() as servers:
            for width in self.settings.widths:
                text = of_length(width, token_counter(self.repository, self.settings.precisions[0]))
                asks = asks_of([text])
                for turn in range(self.settings.rounds):
                    print(f"{width} tokens, round {turn + 1} of {self.settings.rounds}", file=sys.stderr, flush=True)
                    for (way, precision), resident in ways.items():
                        self._measure(way, precision, resident, width, text)
                    for precision in self.settings.precisions:
                        self._load(servers, precision, width, asks)
        return self.figures, self.notes

    def _measure(self, way: str, precision: str, resident: Resident, width: int, text: str) -> None:
        for level in ("net", "text"):
            everything = way == "hfx" and level == "net"
            for batch in self.settings.batches if everything else self.settings.peer_batches:
                sample = resident.measure(Case(text, batch, level), self.settings.seconds)
                key = (way, level, precision, width, batch)
                self.figures[*key, "ms"].append(1e3 * statistics.median(sample.seconds))
                self.figures[*key, "processor ms"].append(1e3 * sample.cpu_seconds)

    def _load(self, servers: Servers, precision: str, width: int, asks: RequestSet) -> None:
        for concurrency in self.settings.concurrencies:
            batch = min(concurrency, max(self.settings.batches))
            known = self.figures["hfx", "net", precision, width, _nearest(batch, self.settings.batches), "ms"]
            rate = 1e3 * _nearest(batch, self.settings.batches) / (statistics.median(known) + 1)
            found = servers.measure(precision, asks, concurrency, int(rate * self.settings.served_seconds))
            key = ("hfx", "served", precision, width, concurrency)
            self.figures[*key, "requests/s"].append(found.requests_per_second)
            self.figures[*key, "ms"].append(found.p50)
            self.figures[*key, "p99 ms"].append(found.p99)
            self.figures[*key, "net batch"].append(found.batch)

    @contextmanager
    def _served(self) -> Iterator[Servers]:
        with Servers(self.repository, self.settings.precisions) as servers:
            yield servers

    @contextmanager
    def _opened(self, with_peers: bool) -> Iterator[Mapping[tuple[str, str], Resident]]:
        with ExitStack() as stack:
            ways: dict[tuple[str, str], Resident] = {}
            for (way, precision), opener in self._openers(with_peers).items():
                print(f"opening {way} {precision}", file=sys.stderr, flush=True)
                try:
                    ways[way, precision] = stack.enter_context(opener())
                except (OpenFailed, FetchFailed) as reason:
                    self.notes[f"{way} {precision}"] = f"not measured: {reason}"
            yield ways

    def _openers(self, with_peers: bool) -> dict[tuple[str, str], Callable[[], Resident]]:
        found: dict[tuple[str, str], Callable[[], Resident]] = {}
        for precision in self.settings.precisions:
            found["hfx", precision] = lambda name=precision: Resident(  # type: ignore[misc]
                open_published, repository=str(self.repository), name=name
            )
        if not with_peers:
            return found
        for name in peers.NAMES:
            for precision in peers.precisions(name, self.settings.precisions):
                found[name, precision] = partial(peers.opened, name, self.checkpoint, self.folder, precision)
        return found


def _nearest(batch: int, batches: Sequence[int]) -> int:
    return max(known for known in batches if known <= batch)


if __name__ == "__main__":
    sys.exit(main())
