"""`python -m bench.generate`: hfx's generation beside CTranslate2, OpenVINO, ONNX Runtime by optimum, and torch.

Every way runs in a process of its own, in rounds in which each has its turn; figures are medians over the rounds. The
works can be run one by one into the same file. What is measured stands in generation_works.py and beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench import generation_figures, generation_inside, generation_load, generation_report, generation_works
from bench.generation_cases import open_model
from bench.generation_figures import Result
from bench.generation_peers import WAYS
from bench.generation_works import QUICK, Settings, Work, prepare, say
from bench.report import machine

WORKS: dict[str, Work] = {
    "gpt2": generation_works.gpt2,
    "t5": generation_works.t5,
    "bart": generation_works.bart,
    "arrivals": generation_load.arrivals,
    "documents": generation_load.documents,
    "overhead": generation_inside.overhead,
    "memory": generation_inside.memory,
    "ops": generation_inside.operators,
    "growth": generation_works.growth,
    "export": generation_inside.exporting,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print Markdown, write JSON. 0 also when a goal is missed: this is a measurement, not a test."""
    parser = argparse.ArgumentParser(prog="python -m bench.generate", description="Generation, and peers.")
    parser.add_argument(
        "--works", default=",".join(WORKS), metavar="A,B", help=f"of {', '.join(WORKS)}; all without it"
    )
    parser.add_argument(
        "--ways", default="", metavar="A,B", help="those with one of these in name and precision: hfx,GenAI int8"
    )
    parser.add_argument("--rounds", type=int, help="turns of each way (2 to 5 without it, by work and by time)")
    parser.add_argument("--quick", action="store_true", help="a smoke run on tiny models; its figures mean nothing")
    parser.add_argument("--prepare", action="store_true", help="fetch and convert what is not cached, and end")
    parser.add_argument("--output", type=Path, metavar="F.json", help="add the works to those in this file")
    options = parser.parse_args(arguments)
    names = options.works.split(",")
    if unknown := [name for name in names if name not in WORKS]:
        parser.error(f"no work {', '.join(unknown)}: choose of {', '.join(WORKS)}")
    words = tuple(word.strip() for word in options.ways.split(",") if word.strip())
    settings = replace(QUICK if options.quick else Settings(), ways=words)
    settings = replace(settings, rounds=options.rounds or settings.rounds)
    if options.prepare:
        return _prepare(settings)
    results = generation_figures.load(options.output) if options.output else {}
    for name in names:
        begin, facts = time.perf_counter(), machine()
        results[name] = WORKS[name](settings)
        results[name].machine = facts
        say(f"{name} took {time.perf_counter() - begin:.0f} s")
        if options.output:
            generation_figures.save(options.output, results)
    print(generation_report.render({name: results[name] for name in WORKS if name in results}))
    return 0


def _prepare(settings: Settings) -> int:
    for name, ways in WAYS.items():
        missing = Result()
        prepare(open_model(name, settings.tiny), settings.chosen(ways), missing)
        for way, reason in missing.notes.items():
            print(f"{way}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
