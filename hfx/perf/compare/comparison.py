"""Measuring candidates in interleaved rounds under every load, and merging result files into one comparison."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil

from hfx.errors import HfxError, LoadFailed, UsageError
from hfx.manifest import created_now
from hfx.perf.compare.candidates import Candidate, Case, Measure, Session, one_line
from hfx.perf.machine import machine
from hfx.perf.report.figures import size
from hfx.perf.results import Machine, Result, Run, read_result

SHARE_OF_MEMORY = 0.8  # usable share of the memory that is free now


def compare(
    candidates: Sequence[Candidate], cases: Sequence[Case], rounds: int, notes: list[str], session: Session
) -> Generator[Run]:
    """Yield the runs of all candidates under all cases.

    `notes` gets a line for each candidate that can't be measured. All candidates are served at the same time if memory
    allows it; otherwise each candidate is started for every measurement.
    """
    with ExitStack() as servers:
        if sum(each.memory for each in candidates) <= SHARE_OF_MEMORY * psutil.virtual_memory().available:
            measures = _opened(candidates, session, servers, notes)
        else:
            notes.append("The candidates do not fit into memory together: each was started for its turn.")
            measures = {each.label: _opened_for_its_turn(each, session) for each in candidates}
        for case in cases:
            load = f", {case.load_label}," if len(cases) > 1 else ""
            yield from _interleaved(measures, case, rounds, notes, session.stop, load)


def result_of(
    title: str, command: str, runs: Sequence[Run], notes: Sequence[str], candidates: Sequence[Candidate]
) -> Result:
    """Return `runs` as a Result. Its base is the first candidate with a run. Raises LoadFailed if there is no run."""
    if not runs:
        raise LoadFailed("No candidate could be measured:\n" + "\n".join(notes), "See the reasons above.")
    measured = {run.subject.label for run in runs}
    return Result(
        kind="compare",
        title=title,
        command=command,
        created=created_now(),
        machine=machine(),
        runs=tuple(runs),
        base=next(each.label for each in candidates if each.label in measured),
        notes=tuple(notes),
    )


def _opened(
    candidates: Sequence[Candidate], session: Session, servers: ExitStack, notes: list[str]
) -> dict[str, Measure]:
    measures: dict[str, Measure] = {}
    for each in candidates:
        try:
            measures[each.label] = servers.enter_context(each.opened(session))
        except HfxError as error:
            notes.append(f"{each.label} was not run: {one_line(error).rstrip('.')}.")
    return measures


def _opened_for_its_turn(candidate: Candidate, session: Session) -> Measure:
    def measure(case: Case, number: int) -> Run:
        with candidate.opened(session) as measured:
            return measured(case, number)

    return measure


def _interleaved(
    measures: Mapping[str, Measure], case: Case, rounds: int, notes: list[str], stop: threading.Event, load: str
) -> Iterator[Run]:
    """Yield the runs of one case in the order A B C, B C A, C A B, …, so that each candidate is first equally often.

    A candidate that fails is not measured again, but keeps its finished rounds. The generator ends when `stop` is set;
    the run during which that happens is still yielded.
    """
    left = list(measures)
    for number in range(rounds):
        start = number % len(left) if left else 0
        for label in (*left[start:], *left[:start]):
            if stop.is_set():
                return
            try:
                yield measures[label](case, number)
            except HfxError as error:
                left.remove(label)
                done = f"measured in {number} round{'s' * (number > 1)} only" if number else "not measured"
                notes.append(f"{label}{load} was {done}: {one_line(error)}")


# Result files of several machines or days


def read_results(paths: Sequence[Path]) -> dict[str, Result]:
    """Return the results in the files `paths`, keyed by file name, or by path if two names are equal.

    Raises UsageError.
    """
    if len(paths) < 2:
        raise UsageError("One file has nothing to be compared with.", "Give two or more: A.json B.json.")
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError("A file is given twice.", "Give different ones.")
    alike = len({path.stem for path in paths}) < len(paths)
    return {str(path.with_suffix("")) if alike else path.stem: read_result(path) for path in paths}


def merge(results: Mapping[str, Result], command: str = "") -> Result:
    """Merge several results into one comparison. Its base is the first label of the first file.

    A label that occurs in several files is prefixed with the file's name. If the files sent different data, each kind
    of data becomes a case of its own. A load that occurs in only one file gets no ratio.
    """
    labels = Counter(label for result in results.values() for label in {run.subject.label for run in result.runs})
    several_data = len({frozenset(run.load.data for run in result.runs) for result in results.values()}) > 1
    runs = tuple(
        _as_of(run, name if labels[run.subject.label] > 1 else "", several_data)
        for name, result in results.items()
        for run in result.runs
    )
    if not runs:
        raise UsageError("There is no run in these files.", "Give files that hfx perf wrote with --output.")
    notes = [f"{name}: {note}" for name, result in results.items() for note in result.notes]
    machines = {name: _machine(result.machine) for name, result in results.items()}
    return Result(
        kind="compare",
        title="Comparison of " + ", ".join(results),
        command=command,
        created=created_now(),
        machine=next(iter(results.values())).machine,
        runs=runs,
        base=runs[0].subject.label,
        notes=(*notes, *_differences(results)),
        details={"machines": {**machines}},
    )


def _as_of(run: Run, file: str, several_data: bool) -> Run:
    """Return `run` with `file` in its label unless `file` is empty. With `several_data`, its data becomes its case."""
    own, case = run.subject.label, ", ".join(part for part in (run.load.case, run.load.data) if part)
    label = f"{file}: {own}" if file and own and own != run.subject.model else file or own
    load = replace(run.load, case=case) if several_data else run.load
    return replace(run, subject=replace(run.subject, label=label), load=load)


def _machine(machine: Machine) -> str:
    gpus = "".join(f", {count} x {name}" for name, count in Counter(machine.gpus).items())
    return f"{machine.processor}, {machine.cores} cores, {size(machine.memory)}{gpus}"


def _differences(results: Mapping[str, Result]) -> list[str]:
    """Return notes on why the files are less comparable than the rounds of one file."""
    notes = ["The rounds of different files were not interleaved: other work on the machines affects the ratios."]
    for noun, part in (
        ("models", lambda run: run.subject.model),
        ("load generators", lambda run: run.subject.tool),
        ("SLOs", lambda run: run.slo or "none"),
        ("loads", lambda run: f"{run.load.label} ({run.load.data})"),
    ):
        parts = {name: list(dict.fromkeys(map(part, result.runs))) for name, result in results.items()}
        if len({frozenset(each) for each in parts.values()}) > 1:
            differences = "; ".join(f"{name}: {', '.join(each)}" for name, each in parts.items())
            notes.append(f"The {noun} differ ({differences}).")
    return notes
