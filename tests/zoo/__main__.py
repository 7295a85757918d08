"""The command line of the zoo: build checkpoints, write shapes, write data.

Paths and nothing else go to stdout, progress to stderr. Exit codes: 0 done, 1 a training stayed below its floor, 2
usage.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

from tests import zoo
from tests.zoo import cache, recipes, rows

JOBS = 2  # trainings at a time, each on one core


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    options = _parser().parse_args(arguments)
    if options.command == "data":
        return _data(options)
    names = options.all_names if options.all else recipes.SHARED if options.shared else options.names
    if not names:
        print("name something to build, or give --all", file=sys.stderr)
        return 2
    # Other processes can't import the functions of a module that runs as __main__: they call those of zoo.
    with ProcessPoolExecutor(JOBS, mp_context=multiprocessing.get_context("spawn")) as pool:
        return _folders({name: pool.submit(options.make, name) for name in names}, options.output)


def _folders(builds: Mapping[str, Future[Path]], output: Path | None) -> int:
    code = 0
    for name, build in builds.items():
        try:
            folder = build.result()
        except zoo.TrainingMissed as miss:
            print(f"error: {miss}", file=sys.stderr)
            code = 1
            continue
        print(f"{name}: {json.dumps(cache.report(folder))}", file=sys.stderr)
        print(folder if output is None else shutil.copytree(folder, output / name, dirs_exist_ok=True))
    return code


def _data(options: argparse.Namespace) -> int:
    examples = (zoo.heldout if options.split == "heldout" else zoo.train)(options.task, options.count)
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(rows.header(examples[0]))
        writer.writerows(rows.row(example) for example in examples)
    print(options.output)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.zoo", description="Small trained checkpoints, and their data."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="train small checkpoints (cached)")
    build.set_defaults(make=zoo.checkpoint, all_names=zoo.NAMES)
    build.add_argument("--shared", action="store_true", help="those that `make test` needs")
    shape = commands.add_parser("shape", help="write full-size checkpoints with random weights (cached)")
    shape.set_defaults(make=zoo.shape, all_names=zoo.SHAPE_NAMES)
    for command in (build, shape):
        command.add_argument("names", nargs="*", metavar="NAME", type=_one_of(command.get_default("all_names")))
        command.add_argument("--all", action="store_true", help="all of them")
        command.set_defaults(shared=False)
        command.add_argument("--output", type=Path, metavar="DIR", help="copy each to DIR/NAME and print that path")
    data = commands.add_parser("data", help="write labelled examples as CSV")
    data.add_argument("task", choices=sorted(zoo.TASK_NAMES))
    data.add_argument("--split", choices=("heldout", "train"), default="heldout")
    data.add_argument("--count", type=int, default=600)
    data.add_argument("--output", type=Path, required=True, metavar="F.csv")
    return parser


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    def known(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(f"unknown name {name!r}; known: {', '.join(names)}")
        return name

    return known


if __name__ == "__main__":
    sys.exit(main())
