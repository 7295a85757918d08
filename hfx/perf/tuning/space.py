"""The values that `hfx tune` tries for the settings of a published model.

Each dimension has a few values that suit this machine. Instances x threads never exceed the CPU's cores, no value makes
the model refuse requests that it accepts now, and the published value is always included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

from hfx.errors import UsageError
from hfx.manifest import Manifest
from hfx.perf.settings import current, settings_line
from hfx.repository.catalog import models

MODEL = "model"  # a setting without a field: another published model of the same checkpoint, with another precision
COMPUTE = ("instances", "threads")  # one dimension, because the cores limit their product
PROCESSES = (1, 2, 4)  # few, because each process has its own copy of the model
ROOM = ("max_batch_size", "slots", "max_queue_size")  # values above the number of callers are useless
DELAYS = (0, 200, 500, 1000, 2000)  # microseconds; passing a request to the next step takes about 250 us
TEXT_FILES = ("/settings.json", "/tokenizer.json", "/generation.json")
LARGEST_BATCH, LARGEST_SLOTS = 512, 256
Settings = Mapping[str, int | str]


@dataclass(frozen=True)
class Dimension:
    """A dimension of the search. `options` maps labels to settings that are set together."""

    name: str
    options: Mapping[str, Settings]


@dataclass(frozen=True)
class Space:
    """All dimensions of a search. `old` are the published settings of these dimensions."""

    dimensions: tuple[Dimension, ...]
    old: Settings

    @property
    def size(self) -> int:
        """The number of combinations of options."""
        return prod(len(dimension.options) for dimension in self.dimensions)

    def settings(self, choice: Mapping[str, str]) -> dict[str, int | str]:
        """Return the settings of a `choice` (dimension -> label of the option)."""
        found: dict[str, int | str] = {}
        for dimension in self.dimensions:
            found |= dimension.options[choice[dimension.name]]
        return found

    def choice(self, settings: Settings) -> dict[str, str]:
        """Return the choice (dimension -> label of the option) that gives these settings."""
        return {
            dimension.name: next(
                label for label, option in dimension.options.items() if option.items() <= settings.items()
            )
            for dimension in self.dimensions
        }


def space(
    repository: Path, manifest: Manifest, device: str, cores: int, only: Sequence[str] = (), callers: int | None = None
) -> Space:
    """Return the values to try for a published model on a machine with `cores` cores.

    `only` limits the search to some settings. If there are at most `callers` requests at a time (None: any number),
    larger batches and queues are not tried. Raises UsageError if nothing can be chosen.
    """
    has = current(repository, manifest, device)
    others = [entry.manifest for entry in models(repository) if entry.manifest and entry.name != manifest.name]
    siblings = [manifest.name]  # and the models with the same answers in other precisions or runtimes
    siblings += sorted(m.name for m in others if getattr(m.precision, device) and _content(m) == _content(manifest))
    known = [*has, *([MODEL] if len(siblings) > 1 else [])]
    if unknown := [name for name in only if name not in known]:
        raise UsageError(f"{manifest.name!r} has no setting {unknown[0]!r} to tune.", f"It has {', '.join(known)}.")
    free = [name for name in known if not only or name in only]
    values = {name: _values(name, has, cores, callers, device) for name in free if name != MODEL}
    computes = _computes(values, has, None if device == "gpu" else cores)
    dimensions = [_dimension("compute", computes)] if computes else []
    dimensions += [_dimension(n, [{n: v} for v in values[n]]) for n in values if n not in COMPUTE]
    if MODEL in free:
        dimensions.append(_dimension(MODEL, [{MODEL: name} for name in siblings]))
    dimensions = [dimension for dimension in dimensions if len(dimension.options) > 1]
    if not dimensions:
        raise UsageError(f"{manifest.name!r} has nothing to choose on this machine.", "Tune it where it will run.")
    old: Settings = {**has, MODEL: manifest.name}
    searched = [name for dimension in dimensions for name in next(iter(dimension.options.values()))]
    return Space(tuple(dimensions), {name: old[name] for name in searched})


def _computes(values: Mapping[str, Sequence[int]], has: Mapping[str, int], cores: int | None) -> list[Settings]:
    """Return pairs of instances and threads.

    On a CPU, they use 1/4 to all of the `cores`, or are the published pair.
    """
    names = [name for name in COMPUTE if name in values]
    options = [dict(zip(names, numbers, strict=True)) for numbers in product(*(values[name] for name in names))]

    def fits(option: Mapping[str, int]) -> bool:
        busy = prod(option.get(name, has.get(name, 1)) for name in COMPUTE)
        return cores is None or option.items() <= has.items() or cores <= 4 * busy <= 4 * cores

    return [option for option in options if names and fits(option)]


def _values(name: str, has: Mapping[str, int], cores: int, callers: int | None, device: str) -> list[int]:
    now = has[name]
    if name in ROOM and callers is not None and callers <= now:
        return [now]
    tries: Mapping[str, Iterable[int]] = {
        "instances": PROCESSES if device == "gpu" else _counts(cores),
        "threads": _counts(cores),
        "max_queue_delay": DELAYS,
        "tokenize_instances": (n for n in PROCESSES if n <= cores),
        "tokenize_max_queue_delay": DELAYS[:-1],
        "postprocess_instances": (n for n in PROCESSES[:2] if n <= cores),
        # Never less than now; otherwise, requests with the present maximum of rows would be refused.
        "max_batch_size": (n for n in (2 * now, 4 * now) if n <= LARGEST_BATCH),
        # Never less than now; otherwise, requests with many beams would be refused.
        "slots": (n for n in (2 * now, 4 * now) if n <= LARGEST_SLOTS),
        "max_queue_size": (2 * now, 4 * now),
    }
    return sorted({now, *tries[name]})


def _counts(most: int) -> list[int]:
    """Return 1, 2, 4 … and `most`."""
    return sorted({1 << n for n in range(most.bit_length()) if 1 << n <= most} | {most})


def _dimension(name: str, options: Sequence[Settings]) -> Dimension:
    return Dimension(name, {settings_line(option): option for option in options})


def _content(manifest: Manifest) -> tuple[object, ...]:
    """Return a key that is equal for models with equal answers: task, checkpoint, tokenizer and generation settings."""
    files = {path.removeprefix(manifest.name): entry for path, entry in manifest.files.items()}
    return manifest.task, manifest.source.sha256, {p: e for p, e in files.items() if p.endswith(TEXT_FILES)}
