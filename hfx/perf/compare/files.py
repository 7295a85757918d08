"""Result files of several machines or days as one comparison.

Owns the labels of the sides and the search for equal loads. It must not know how the files were measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hfx.errors import UsageError
from hfx.manifest import created_now
from hfx.perf.results import Load, Machine, Result, Run, read_result

GIBIBYTE = 1 << 30


def read_results(paths: Sequence[Path]) -> dict[str, Result]:
    """The results in the files PATHS by a short name of each. Raises UsageError."""
    if len(paths) < 2:
        raise UsageError("One file has nothing to be compared with.", "Give two or more: A.json B.json.")
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError("A file is given twice.", "Give different ones.")
    return {name: read_result(path) for name, path in zip(short_names(paths), paths, strict=True)}


def short_names(paths: Sequence[Path]) -> list[str]:
    """A name for each path: its own, as many folders before it as tell all of them apart."""
    parts = [path.resolve().with_suffix("").parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]  # they differ in their suffix alone


def merge(results: Mapping[str, Result], command: str = "") -> Result:
    """One comparison of several results; the first side of the first file is its base.

    What is measured at a load that another file lacks stays, and a note says so: it has no ratio.
    """
    labelled = _told_apart(dict(zip(results, _labelled(results), strict=True)))
    runs = tuple(run for each in labelled.values() for run in each)
    if not runs:
        raise UsageError("There is no run in these files.", "Give files that hfx perf wrote with --output.")
    notes = [f"{name}: {note}" for name, result in results.items() for note in result.notes]
    return Result(
        kind="compare",
        title="Comparison of " + ", ".join(results),
        command=command,
        created=created_now(),
        machine=next(iter(results.values())).machine,
        runs=runs,
        base=runs[0].subject.label,
        notes=(*notes, *_differences(labelled), *_lonely(labelled)),
        published=tuple(dict.fromkeys(figure for result in results.values() for figure in result.published)),
        details={"machines": {name: machine_words(result.machine) for name, result in results.items()}},
    )


def load_key(load: Load) -> tuple[str, str]:
    """What makes two loads the same: how much of what."""
    return load.label, load.data


def machine_words(machine: Machine) -> str:
    """A machine in a few words."""
    gpus = "".join(f", {count} x {name}" for name, count in Counter(machine.gpus).items())
    return f"{machine.processor}, {machine.cores} cores, {machine.memory / GIBIBYTE:.0f} GiB{gpus}"


# Labels


def _labelled(results: Mapping[str, Result]) -> list[tuple[Run, ...]]:
    """The runs of each result; a label that several results have becomes the device, or gets the file's name."""
    labels = [{run.subject.label for run in result.runs} for result in results.values()]
    counts = Counter(label for each in labels for label in each)
    shared = {label for label, count in counts.items() if count > 1}
    by_device = len(counts) == 1 and _devices_differ(results)

    def label(run: Run, name: str, alone: bool) -> str:
        if by_device:
            return run.subject.device
        return name if alone else f"{name}: {run.subject.label}"

    return [
        tuple(
            _labelled_as(run, label(run, name, len(each) == 1)) if run.subject.label in shared else run
            for run in result.runs
        )
        for (name, result), each in zip(results.items(), labels, strict=True)
    ]


def _devices_differ(results: Mapping[str, Result]) -> bool:
    """Whether each file is of one device, and of another one than all the others."""
    devices = [{run.subject.device for run in result.runs} for result in results.values()]
    return all(len(each) == 1 and "" not in each for each in devices) and len(set().union(*devices)) == len(results)


def _labelled_as(run: Run, label: str) -> Run:
    return replace(run, subject=replace(run.subject, label=label))


# What differs


def _told_apart(labelled: Mapping[str, tuple[Run, ...]]) -> dict[str, tuple[Run, ...]]:
    """The runs, where the same number of callers asked for other things in another file: that is another case."""
    asked: dict[str, set[frozenset[str]]] = {}
    for runs in labelled.values():
        for label in {run.load.label for run in runs}:
            asked.setdefault(label, set()).add(frozenset(run.load.data for run in runs if run.load.label == label))
    other = {data for different in asked.values() if len(different) > 1 for each in different for data in each}
    return {
        name: tuple(_as_case(run) if run.load.data in other else run for run in runs) for name, runs in labelled.items()
    }


def _as_case(run: Run) -> Run:
    words = ", ".join(part for part in (run.load.case, run.load.data) if part)
    return replace(run, load=replace(run.load, case=words))


def _differences(labelled: Mapping[str, Sequence[Run]]) -> list[str]:
    """What makes the files less comparable than they look."""
    looks: dict[str, Callable[[Run], str]] = {
        "models": lambda run: run.subject.model,
        "load generators": lambda run: run.subject.tool,
        "SLOs": lambda run: run.slo or "none",
        "protocols": lambda run: run.subject.protocol,
    }
    notes = ["The rounds of different files did not take turns: what the machines did meanwhile is in the ratios."]
    for noun, look in looks.items():
        found = {name: sorted({look(run) for run in runs}) for name, runs in labelled.items()}
        if len({tuple(each) for each in found.values()}) > 1:
            said = "; ".join(f"{name}: {', '.join(each)}" for name, each in found.items())
            notes.append(f"The {noun} differ ({said}).")
    return notes


def _lonely(labelled: Mapping[str, Sequence[Run]]) -> list[str]:
    """The loads that not all files have."""
    loads = {name: {load_key(run.load): run.load for run in runs} for name, runs in labelled.items()}
    notes = []
    for name, own in loads.items():
        for key, load in own.items():
            lacking = [other for other, theirs in loads.items() if key not in theirs]
            if lacking:
                notes.append(f"{name}: {_in_words(load)} has no partner in {', '.join(lacking)}.")
    return notes


def _in_words(load: Load) -> str:
    return f"{load.label} ({load.data})" if load.data and load.data not in load.case else load.label
