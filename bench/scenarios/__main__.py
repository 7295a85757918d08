"""`python -m bench.scenarios`: canned measurements of full-size models beside their peers, with goals."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.goals import goals, goals_table, published_table
from bench.machine import machine
from bench.scenarios.running import Options, run_scenario
from bench.scenarios.table import SCENARIOS
from bench.scenarios.verdicts import result_table
from hfx.errors import HfxError
from hfx.perf.report.tables import to_lines, warnings
from hfx.perf.results import Result, write_result


def main(arguments: Sequence[str] | None = None) -> int:
    """Each scenario's result is on disk before the next one begins."""
    parser = argparse.ArgumentParser(prog="python -m bench.scenarios", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--all", action="store_true", help="run all of them")
    parser.add_argument("--rounds", type=int, help="turns of each way")
    parser.add_argument("--peers", metavar="A,B", help="of the scenario's peers only these; none")
    parser.add_argument("--quick", action="store_true", help="a smoke run on a tiny model: its figures mean nothing")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write DIR/NAME.json")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in SCENARIOS]:
        parser.error(f"no scenario {', '.join(unknown)}: choose of {', '.join(SCENARIOS)}")
    if bool(options.names) == options.all:
        parser.error(f"name some of {', '.join(SCENARIOS)}, or add --all")
    peers = None if options.peers is None else tuple(name for name in options.peers.split(",") if name != "none")
    command = shlex.join(["python", "-m", "bench.scenarios", *(sys.argv[1:] if arguments is None else arguments)])
    wanted = Options(options.rounds, peers, quick=options.quick, command=command, say=_say)
    wanted = replace(wanted, machine=machine(rates=not options.quick))
    try:
        for name in options.names or SCENARIOS:
            result = run_scenario(SCENARIOS[name], wanted)
            if options.output:
                write_result(result, options.output / f"{name}.json")
            print("\n".join(_lines(result)))
    except HfxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _lines(result: Result) -> list[str]:
    lines = [result.title, *(f"  {words}" for words in warnings(result)), ""]
    for table in (result_table(result), goals_table(goals(result)), published_table(result)):
        lines += [*to_lines(table), ""] if table else []
    return lines


if __name__ == "__main__":
    sys.exit(main())
