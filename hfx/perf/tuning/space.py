"""The settings of a published model: their fields in the config.pbtxt files, and the values that a search tries.

Each dimension has a few values that suit this machine. Instances x threads never exceed the CPU's cores, no value makes
the model refuse requests that it accepts now, and the published value is always included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

from hfx.errors import UsageError
from hfx.manifest import Manifest
from hfx.names import NET_SUFFIX, POSTPROCESS_SUFFIX, STREAM_SUFFIX, TOKENIZE_SUFFIX
from hfx.repository.catalog import models
from hfx.repository.edit import Edit, value

MODEL = "model"  # a setting without a field: another published model of the same checkpoint, with another precision
MICROSECONDS = {"": 1, "us": 1, "ms": 1000}
LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """A `field` in the config.pbtxt of the members with these suffixes.

    `shared` means that CPU and GPU have the same value.
    """

    name: str
    field: str
    suffixes: tuple[str, ...]
    description: str
    least: int = 1
    shared: bool = False

    @property
    def is_time(self) -> bool:
        """Whether the values of the setting are microseconds."""
        return self.field == "max_queue_delay_microseconds"


ENCODER = (TOKENIZE_SUFFIX, NET_SUFFIX, POSTPROCESS_SUFFIX)
THREADS = "parameters.intra_op_thread_count"
DELAY = "max_queue_delay_microseconds"
SETTINGS: tuple[Setting, ...] = (
    Setting("instances", "instances", (NET_SUFFIX,), "instances of the net"),
    Setting("threads", THREADS, (NET_SUFFIX, STREAM_SUFFIX), "threads of an instance"),
    Setting("max_queue_delay", DELAY, (NET_SUFFIX,), "microseconds that the net's batches wait for more", 0),
    Setting("tokenize_instances", "instances", (TOKENIZE_SUFFIX,), "processes of the tokenizer"),
    Setting("tokenize_max_queue_delay", DELAY, (TOKENIZE_SUFFIX,), "microseconds that the tokenizer's batches wait", 0),
    Setting("postprocess_instances", "instances", (POSTPROCESS_SUFFIX,), "processes of the last step"),
    Setting("max_batch_size", "max_batch_size", ENCODER, "rows of a batch at most", shared=True),
    Setting("slots", "parameters.slots", (STREAM_SUFFIX,), "sequences that a generator writes at a time"),
    Setting("max_queue_size", "parameters.max_queue_size", (STREAM_SUFFIX,), "requests that wait for a slot at most"),
)
NAMES: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}


def parse(name: str, text: str) -> int:
    """Return the value of a setting in `text`: a number, or a time such as 500us or 2ms. Raises UsageError."""
    setting = named(name)
    found = re.fullmatch(r"([0-9]{1,7})(us|ms|)", text.strip(), re.ASCII)
    if not found or (found[2] and not setting.is_time):
        example = "500us or 2ms" if setting.is_time else "4"
        raise UsageError(
            f"{text!r} is not a value of {name}.", f"It is {setting.description}: a number such as {example}."
        )
    return _checked(setting, int(found[1]) * MICROSECONDS[found[2]])


def named(name: str) -> Setting:
    """Return the setting with this name. Raises UsageError."""
    if name not in NAMES:
        raise UsageError(f"There is no setting {name!r}.", f"Choose from {', '.join(NAMES)}.")
    return NAMES[name]


def current(repository: Path, manifest: Manifest, device: str = "cpu") -> dict[str, int]:
    """Return setting -> value in the model's configurations for `device`, without settings that the model lacks."""
    found: dict[str, int] = {}
    for setting in SETTINGS:
        entries = (value(repository, folder, setting.field, device) for folder in _folders(manifest, setting))
        if (entry := next((each for each in entries if isinstance(each, int)), None)) is not None:
            found[setting.name] = entry
    return found


def edits(repository: Path, manifest: Manifest, settings: Mapping[str, int], device: str = "cpu") -> tuple[Edit, ...]:
    """Return the edits that give the model these settings. Raises UsageError for a setting that the model lacks."""
    has = current(repository, manifest, device)
    made: list[Edit] = []
    for name, wanted in settings.items():
        setting = named(name)
        if name not in has:
            raise UsageError(f"{manifest.name!r} has no setting {name!r}.", f"It has {', '.join(has)}.")
        folders = _folders(manifest, setting)
        entry = value(repository, manifest.name, setting.field)
        if setting.shared and isinstance(entry, int) and wanted < entry:
            folders = (manifest.name, *folders)  # no step of an ensemble may have a smaller value than the ensemble
        device_of = "" if setting.shared else device
        made += [Edit(folder, setting.field, _checked(setting, wanted), device_of) for folder in folders]
    return tuple(made)


def settings_line(settings: Mapping[str, object]) -> str:
    """Return `settings` as one line of text."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _folders(manifest: Manifest, setting: Setting) -> tuple[str, ...]:
    return tuple(manifest.name + end for end in setting.suffixes if manifest.name + end in manifest.folders)


def _checked(setting: Setting, number: int) -> int:
    if not setting.least <= number <= LARGEST:
        raise UsageError(f"{setting.name} can't be {number}.", f"Choose {setting.least} to {LARGEST}.")
    return number


# The values that a search may try

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
        """The number of combinations."""
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
    siblings = _siblings(repository, manifest, device)
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


def _siblings(repository: Path, manifest: Manifest, device: str) -> list[str]:
    """Return the published models with the same answers in other precisions or runtimes.

    `manifest`'s model is first.
    """
    found = [entry.manifest for entry in models(repository) if entry.manifest and entry.name != manifest.name]
    alike = [each.name for each in found if getattr(each.precision, device) and _content(each) == _content(manifest)]
    return [manifest.name, *sorted(alike)]


def _content(manifest: Manifest) -> tuple[object, ...]:
    """Return a key that is equal for models with equal answers: task, checkpoint, tokenizer and generation settings."""
    files = {path.removeprefix(manifest.name): entry for path, entry in manifest.files.items()}
    return manifest.task, manifest.source.sha256, {p: e for p, e in files.items() if p.endswith(TEXT_FILES)}
