"""`python -m bench.serve`: a generator through Triton's doors beside the same engine in process, and the seed load.

The works can be run one by one into the same file, and the figures of a file put into a page of the documentation. What
is measured stands in serve_works.py and beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench import generation_figures, serve_report
from bench.generation_works import say
from bench.report import machine
from bench.serve_works import QUICK, WORKS, Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print Markdown, write JSON. 0 also when a goal is missed: this is a measurement, not a test."""
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description="Generation through Triton.")
    parser.add_argument(
        "--works", default=",".join(WORKS), metavar="A,B", help=f"of {', '.join(WORKS)}; all without it"
    )
    parser.add_argument("--rounds", type=int, help="turns of each way (2 or 3 without it, by work)")
    parser.add_argument("--quick", action="store_true", help="a smoke run on a tiny model; its figures mean nothing")
    parser.add_argument("--no-peers", action="store_true", help="leave out MLServer")
    parser.add_argument("--output", type=Path, metavar="F.json", help="add the works to those in this file")
    parser.add_argument(
        "--docs", type=Path, metavar="PAGE.md", help="measure nothing: put the figures of --output into this page"
    )
    options = parser.parse_args(arguments)
    names = options.works.split(",")
    if unknown := [name for name in names if name not in WORKS]:
        parser.error(f"no work {', '.join(unknown)}: choose of {', '.join(WORKS)}")
    results = generation_figures.load(options.output) if options.output else {}
    if options.docs:
        if not results:
            parser.error("--docs needs --output with a file of figures")
        serve_report.write_page(options.docs, results)
        return 0
    settings = QUICK if options.quick else Settings()
    peers = settings.peers and not options.no_peers
    settings = replace(settings, rounds=options.rounds or settings.rounds, peers=peers)
    for name in names:
        begin, facts = time.perf_counter(), machine()
        results[name] = WORKS[name](settings)
        results[name].machine = facts
        say(f"{name} took {time.perf_counter() - begin:.0f} s")
        if options.output:
            generation_figures.save(options.output, results)
    print(serve_report.render({name: results[name] for name in WORKS if name in results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
