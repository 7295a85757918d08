"""Result files of several machines or days as one comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from hfx.errors import UsageError
from hfx.perf.report.numbers import size
from hfx.perf.results import Machine, Result, Run, read_result


def read_results(paths: Sequence[Path]) -> dict[str, Result]:
    """The results in the files `paths` by file name, with its folder where the names alone are alike.

    Raises UsageError.
    """
    if len(paths) < 2:
        raise UsageError("One file has nothing to be compared with.", "Give two or more: A.json B.json.")
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError("A file is given twice.", "Give different ones.")
    alike = len({path.stem for path in paths}) < len(paths)
    return {str(path.with_suffix("")) if alike else path.stem: read_result(path) for path in paths}


def merge(results: Mapping[str, Result], command: str = "") -> Result:
    """One comparison of several results; the first label of the first file is its base.

    A label that several files have gets the file's name. A load that another file lacks stays, without a ratio; where
    files sent other data, each data is a case of its own.
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
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=next(iter(results.values())).machine,
        runs=runs,
        base=runs[0].subject.label,
        notes=(*notes, *_differences(results)),
        details={"machines": {**machines}},
    )


def _as_of(run: Run, file: str, several_data: bool) -> Run:
    """`run` with the file's name in its label, and its data as its case, where these are needed."""
    own, case = run.subject.label, ", ".join(part for part in (run.load.case, run.load.data) if part)
    label = f"{file}: {own}" if file and own and own != run.subject.model else file or own
    load = replace(run.load, case=case) if several_data else run.load
    return replace(run, subject=replace(run.subject, label=label), load=load)


def _machine(machine: Machine) -> str:
    gpus = "".join(f", {count} x {name}" for name, count in Counter(machine.gpus).items())
    return f"{machine.processor}, {machine.cores} cores, {size(machine.memory)}{gpus}"


def _differences(results: Mapping[str, Result]) -> list[str]:
    """What makes the files less comparable than they look."""
    notes = ["The rounds of different files did not take turns: what the machines did meanwhile is in the ratios."]
    for noun, part in (
        ("models", lambda run: run.subject.model),
        ("load generators", lambda run: run.subject.tool),
        ("SLOs", lambda run: run.slo or "none"),
        ("loads", lambda run: f"{run.load.label} ({run.load.data})"),
    ):
        parts = {name: list(dict.fromkeys(map(part, result.runs))) for name, result in results.items()}
        if len({frozenset(each) for each in parts.values()}) > 1:
            said = "; ".join(f"{name}: {', '.join(each)}" for name, each in parts.items())
            notes.append(f"The {noun} differ ({said}).")
    return notes
