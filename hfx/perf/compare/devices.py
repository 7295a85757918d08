"""CPU against GPU: the same repository started for each, or servers that run already wherever they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hfx.client.address import parse_address
from hfx.errors import UsageError
from hfx.perf.compare.side import Side, running, served
from hfx.perf.measuring import Target
from hfx.triton.server import DEVICES


def parse_devices(text: str) -> tuple[str, ...]:
    """The devices in "cpu,gpu". Raises UsageError."""
    found = tuple(part.strip() for part in text.split(","))
    if len(set(found)) < len(found) or not set(found) <= set(DEVICES):
        raise UsageError(f"--devices {text!r} can't be compared.", f"Give {','.join(DEVICES)}.")
    return found


def device_sides(repository: Path, name: str, devices: Sequence[str]) -> list[Side]:
    """A Triton of the published model for each device: --model-config-name is the device's name."""
    return [served(device, repository, name, device) for device in devices]


def target_sides(words: Sequence[str], name: str) -> list[Side]:
    """A side for each server in WORDS, such as "gpu=host:8001"."""
    return [running(label, target) for label, target in targets(words, name).items()]


def targets(words: Sequence[str], name: str) -> dict[str, Target]:
    """The model NAME on each server, by the server's label: one that is a device's name says what runs there."""
    found: dict[str, Target] = {}
    for text in words:
        label, _, url = (part.strip() for part in text.partition("="))
        if not label or not url:
            raise UsageError(f"--target {text!r} is no server.", "Give LABEL=HOST:PORT of its gRPC API.")
        if label in found:
            raise UsageError(f"--target gives {label!r} twice.", "Give each server a label of its own.")
        if parse_address(url).protocol != "grpc":
            raise UsageError(f"{url} is an HTTP address.", "Give the gRPC port's as HOST:PORT.")
        found[label] = Target(name, url, device=label if label in DEVICES else "")
    return found
