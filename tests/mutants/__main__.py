"""Mutation tests: change one operator, constant or statement of a module at a time, and see whether a test fails.

    make mutants PACKAGE=hfx/front/keys.py

The tests of a module are collected once, and run once to learn which statements each of them executes. Every mutant is
a fork of that process: it gets the changed code, and runs the tests that execute the changed statement, the quickest
first, until one fails or takes far longer than before. Tests that start processes don't see the change.

A mutant that no test can kill, because it behaves as the module does, is explained in a line of explained.tsv (module,
source line, change or *, reason), and not tried. FLOORS has the least share of the others that must be killed. A floor
may only rise.
"""

from __future__ import annotations

import argparse
import ast
import csv
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings

from tests.mutants.mutations import Mutant, install, mutants, recording

ROOT = Path(__file__).resolve().parents[2]
EXPLAINED = Path(__file__).with_name("explained.tsv")
RESULTS = ROOT / "build" / "mutants"
JOBS = 2
MEMORY = 4 << 30  # bytes that a mutant may use beyond what its fork has
MARKS = "not slow and not triton and not full and not soak and not container"


def _tests(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


ENGINE = _tests("unit/python_backends", "engine_scheduler", "engine_fairness", "engine_queue")
RANDOM = f"--deselect={ENGINE[0]}::test_random_requests_cancellations_and_failures_keep_the_invariants["
ENGINE += tuple(f"{RANDOM}{seed}" for seed in range(1, 6))  # and 10 to 14: a third of the seeds kills as many
ENGINE += _tests("unit/python_backends", "engine_core", "engine_prefix") + _tests(
    "unit/simulation", "engine_simulation"
)
PUBLISHING = _tests("unit/repository", "publish", "recovery") + _tests("attacks", "hostile_repositories")

SLOW = "-m", "not full"  # also with the slow tests

# Module -> (the least percentage of mutants killed, the files of its tests and other arguments of pytest).
FLOORS: dict[str, tuple[float, tuple[str, ...]]] = {
    "hfx/python_backends/engine/scheduler.py": (100, ENGINE),
    "hfx/python_backends/engine/fair_scheduler.py": (100, ENGINE),
    "hfx/front/guard.py": (100, _tests("unit/front", "guard", "read_body", "cancellation")),
    "hfx/front/keys.py": (100, _tests("unit/front", "keys")),
    "hfx/repository/publish.py": (100, (*PUBLISHING, f"--deselect={PUBLISHING[0]}::test_a_kill_")),
    "hfx/batch/plan.py": (100, _tests("unit/batch", "plan", "shards")),
    "hfx/exporter/encoder/gate.py": (79, (*_tests("unit/exporter", "encoder_gate"), *SLOW)),
    "hfx/exporter/generation/gate.py": (80, (*_tests("unit/exporter", "generation_gate", "generation_formats"), *SLOW)),
}


class Run:
    """Runs the mutants of the module at `path` in place of pytest's own loop, for at most `seconds`."""

    def __init__(self, path: str, seconds: float, only_survivors: bool) -> None:
        self.path, self.seconds, self.only_survivors = path, seconds, only_survivors
        with EXPLAINED.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            self.explained = {f"{line}\t{change}" for module, line, change, _ in rows if module == path}
        self.tree = ast.parse((ROOT / path).read_text())
        self.all = list(mutants((ROOT / path).read_text(), self.tree))
        tried = [each for each in self.all if not self.explained & {each.name, f"{each.line}\t*"}]
        self.mutants = {each.name: each for each in tried}
        self.results: dict[str, str] = {}
        self.lines: set[int] = set()  # of the module, that the running test has executed
        self.prepared = defaultdict[Path, set[int]](set)
        self.tests: dict[str, tuple[float, list[int]]] = {}  # the seconds and lines of each

    def pytest_configure(self) -> None:
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", database=None, derandomize=True, phases=phases)
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.module = importlib.import_module(self.path.removesuffix(".py").replace("/", "."))
        files = sorted({item.path for item in session.items})
        texts = [(ROOT / self.path).read_bytes(), *(file.read_bytes() for file in files)]
        self.store = RESULTS / f"{self.module.__name__}.json"
        RESULTS.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(b"\0".join(texts)).hexdigest()
        saved = json.loads(self.store.read_text()) if self.store.exists() else {}
        if saved.get("digest") == digest:
            self.results = saved["results"]
        elif self.only_survivors:
            self.results = {name: result for name, result in saved["results"].items() if result == "killed"}
        if saved.get("digest") != digest:
            saved = {"digest": digest, **self._baseline(session.items)}
        self.saved, self.tests = saved, saved["tests"]
        self._save()
        for name in saved["modules"]:  # once, rather than in each mutant
            with suppress(Exception):
                importlib.import_module(name)
        self._run_all({item.nodeid: item for item in session.items})
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Count what fixtures execute for all later tests of the file, too, which may share them."""
        self.prepared[item.path] |= self.lines

    def _baseline(self, items: Sequence[pytest.Item]) -> dict[str, Any]:
        """Return the seconds and lines of each test that passes and executes any, and the libraries that they load."""
        file = Path(tempfile.mkdtemp()) / "lines.json"

        def record() -> int:
            lines = vars(self.module)["__lines__"] = self.lines
            install(self.module, recording(self.tree))
            tests, before = {}, set(sys.modules)
            for item, following in zip(items, [*items[1:], None], strict=True):
                lines.clear()
                start = time.monotonic()
                passed = all(report.passed for report in runtestprotocol(item, nextitem=following, log=False))
                if passed and (lines or self.prepared[item.path]):
                    tests[item.nodeid] = time.monotonic() - start, sorted(lines | self.prepared[item.path])
            modules = [name for name in sys.modules if name not in before and not name.startswith(("hfx.", "tests."))]
            file.write_text(json.dumps({"tests": tests, "modules": modules}))
            return 0

        os.waitpid(_fork(record, file.parent), 0)
        found: dict[str, Any] = json.loads(file.read_text())
        shutil.rmtree(file.parent)
        return found

    def _run_all(self, items: dict[str, pytest.Item]) -> None:
        running: dict[int, tuple[str, str]] = {}
        end = time.monotonic() + self.seconds

        def reap() -> None:
            pid, status = os.wait()
            name, folder = running.pop(pid)
            self.results[name] = "survived" if status == 0 else "killed"
            self._save()
            shutil.rmtree(folder, ignore_errors=True)

        chosen = {name: self._tests_of(mutant) for name, mutant in self.mutants.items() if name not in self.results}
        self.results |= {name: "survived" for name, tests in chosen.items() if not tests}
        quickest = {name: self.tests[tests[0]][0] for name, tests in chosen.items() if tests}
        for name in sorted(quickest, key=quickest.__getitem__):
            if time.monotonic() > end:
                break
            while len(running) >= JOBS:
                reap()
            folder = tempfile.mkdtemp(prefix="mutant-")
            work = partial(self._survives, self.mutants[name], [items[each] for each in chosen[name]])
            running[_fork(work, Path(folder))] = name, folder
        while running:
            reap()

    def _save(self) -> None:
        self.store.write_text(json.dumps({**self.saved, "results": self.results}))

    def _tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute a mutant's statement, the quickest first; all for one outside of functions."""
        anywhere = mutant.within is self.tree.body[mutant.at]
        tests = [name for name, (_, lines) in self.tests.items() if anywhere or mutant.within.lineno in lines]
        return sorted(tests, key=lambda name: self.tests[name][0])

    def _survives(self, mutant: Mutant, items: Sequence[pytest.Item]) -> int:
        top = self.tree.body[mutant.at]
        is_run = mutant.within is not top
        mutant.apply()
        install(self.module, [top] if is_run else self.tree.body)
        for item, following in zip(items, [*items[1:], None], strict=True):
            seconds = self.tests[item.nodeid][0]
            signal.setitimer(signal.ITIMER_PROF, 3 + 5 * seconds)  # a loop without end
            signal.setitimer(signal.ITIMER_REAL, 30 + 10 * seconds)  # a lock that is never free
            if any(report.failed for report in runtestprotocol(item, nextitem=following, log=False)):
                return 1
        return 0

    def report(self) -> int:
        """Print the survivors and the counts. Return 1 if the share of killed mutants is below the floor."""
        left = [name for name, result in self.results.items() if name in self.mutants and result == "survived"]
        for name in left:
            print(f"survives{'' if self._tests_of(self.mutants[name]) else ' without a test'}\t{name}")
        for name in self.explained - {each for mutant in self.all for each in (mutant.name, f"{mutant.line}\t*")}:
            print(f"explained, but gone\t{name}")
        tried = len(self.mutants.keys() & self.results.keys())
        share = 100 * (tried - len(left)) / max(1, tried)
        print(f"{self.path}: {len(self.all)} mutants, {len(self.all) - len(self.mutants)} explained, {tried} tried, "
              f"{tried - len(left)} killed, {len(left)} left: {share:.1f} %")  # fmt: skip
        return 3 if tried < len(self.mutants) else int(share < FLOORS[self.path][0])


def _fork(work: Callable[[], int], folder: Path) -> int:
    """Run `work` in a fork, with its own `folder` of temporary files, and return its process id."""
    if pid := os.fork():
        return pid
    try:
        for limit in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(limit, signal.SIG_DFL)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        tempfile.tempdir = str(folder)
        os._exit(work())
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        os._exit(2)


def main() -> int:
    """Run the mutants of one module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", choices=FLOORS, metavar="MODULE", help=", ".join(FLOORS))
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time; the next call continues")
    parser.add_argument("--only-survivors", action="store_true", help="after a change of tests, rerun what survived")
    options = parser.parse_args()
    run = Run(options.module, options.seconds, options.only_survivors)
    disabled = [part for name in ("xdist", "timeout", "cacheprovider") for part in ("-p", f"no:{name}")]
    code = pytest.main(["-q", "-m", MARKS, *disabled, *FLOORS[options.module][1]], plugins=[run])
    return int(code) or run.report()


if __name__ == "__main__":
    sys.exit(main())
