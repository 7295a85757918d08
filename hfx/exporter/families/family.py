"""What a family of generators is: the checkpoints that it takes, and how one of them is read as a `Net`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hfx.exporter.families.config import Config
from hfx.exporter.graph.blocks import Kind, Net
from hfx.exporter.tensors import CheckpointTensors


@dataclass(frozen=True)
class Family:
    """One family; `architectures` are the classes of checkpoints with all that generation needs.

    `read(config, tensors)` describes a checkpoint by blocks. It reads no weight, and raises CheckpointUnsupported for a
    switch of the config that the blocks don't have, CheckpointCorrupt for tensors that don't fit it. `unbounded`: it
    has no table of positions, so that lengths of the config are those of its training, and no limits.
    """

    name: str
    kind: Kind
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    read: Callable[[Config, CheckpointTensors], Net]
    unbounded: bool = False
