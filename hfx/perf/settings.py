"""The settings of a published model that can be compared and tuned: their fields in the config.pbtxt files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hfx.errors import UsageError
from hfx.manifest import Manifest
from hfx.names import NET_SUFFIX, POSTPROCESS_SUFFIX, STREAM_SUFFIX, TOKENIZE_SUFFIX
from hfx.repository.edit import Edit, value

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
