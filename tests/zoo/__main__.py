"""`python -m tests.zoo build`: train small checkpoints.

Paths and nothing else go to stdout, progress to stderr. Exit codes: 0 done, 1 a training stayed below its floor, 2
usage.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tests import zoo
from tests.zoo import cache, recipes

JOBS = 2  # trainings at a time, each on one core


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description="Small trained checkpoints.")
    build = parser.add_subparsers(required=True).add_parser("build", help="train small checkpoints (cached)")
    build.add_argument("names", nargs="*", metavar="NAME")
    build.add_argument("--all", action="store_true", help="all of them")
    build.add_argument("--shared", action="store_true", help="those that `make test` needs")
    options = parser.parse_args(arguments)
    names = zoo.NAMES if options.all else recipes.SHARED if options.shared else options.names
    if not names or not set(names) <= set(zoo.NAMES):
        build.error(f"give --all, or some of {', '.join(zoo.NAMES)}")
    code = 0
    # Other processes can't import the functions of a module that runs as __main__: they call those of zoo.
    with ProcessPoolExecutor(JOBS, mp_context=multiprocessing.get_context("spawn")) as pool:
        builds = {name: pool.submit(zoo.checkpoint, name) for name in names}
        for name, build in builds.items():
            try:
                folder = build.result()
            except zoo.TrainingMissed as miss:
                print(f"error: {miss}", file=sys.stderr)
                code = 1
                continue
            print(f"{name}: {json.dumps(cache.report(folder))}", file=sys.stderr)
            print(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
