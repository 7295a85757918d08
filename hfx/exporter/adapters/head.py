"""Read a plain head: a checkpoint that has every tensor of the backbone unchanged, and parameters of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hfx.errors import CheckpointUnsupported
from hfx.exporter.adapters.adapter_config import ALONE, FEATURE_EXTRACTION, SEQ_CLS, TOKEN_CLS
from hfx.exporter.adapters.fit import current, read_settings, refuse_other_settings
from hfx.exporter.adapters.folder import Adapter
from hfx.exporter.checkpoint_files import stored_shapes
from hfx.exporter.load import IGNORED_TENSORS
from hfx.exporter.quiet import quiet_libraries
from hfx.exporter.source import Checkpoint, open_checkpoint
from hfx.exporter.tensors import CheckpointTensors

BUFFERS = ("position_ids", "num_batches_tracked")  # ends of the names of stored tensors that are no parameters
TASK_OF_CLASS = (("ForSequenceClassification", SEQ_CLS), ("ForTokenClassification", TOKEN_CLS))


def read_head(name: str, folder: Path, backbone: Checkpoint) -> Adapter:
    """Read the checkpoint in `folder`, which must contain the `backbone` unchanged, for the model `name`.

    `saved` of the result has the parameters that the backbone's base model (its own head aside) doesn't have.
    Values are compared as float32. Raises CheckpointUnsupported if tensors or settings of the base model differ, are
    missing, or are in a pickle; and what open_checkpoint raises.
    """
    checkpoint, settings = open_checkpoint(str(folder)), read_settings(backbone)
    refuse_other_settings(checkpoint.folder / "config.json", checkpoint.config, settings, ALONE)
    head, base = _Stored(checkpoint.home, settings), _Stored(backbone.home, settings)
    lacking = sorted(path for path in base.paths - base.of_base.keys() if not IGNORED_TENSORS.search(path))
    if lacking:
        raise CheckpointUnsupported(
            f"{backbone.folder} lacks {len(lacking)} tensors of the {backbone.model_type} model under transformers' "
            f"names (first: {lacking[0]}): heads can't be compared with it.",
            "Save the backbone again: AutoModel.from_pretrained(...).save_pretrained(FOLDER).",
        )
    shared = {path: stored for path, stored in base.of_base.items() if not IGNORED_TENSORS.search(path)}
    shared |= {path: base.of_base[path] for path in base.of_base.keys() & head.of_base.keys()}
    different = [path for path in sorted(shared) if not _equal(base, head, path)]
    if different:
        raise CheckpointUnsupported(
            f"{checkpoint.folder}: {len(different)} of {len(shared)} tensors of the backbone differ or are missing "
            f"(first: {different[0]}).",
            ALONE,
        )
    shared_names = {head.of_base[path] for path in shared if path in head.of_base}
    own = [stored for stored in head.shapes if stored not in shared_names and not stored.endswith(BUFFERS)]
    saved = {current(stored): head.tensors.parameter(stored, *head.shapes[stored]).read() for stored in sorted(own)}
    return Adapter(name, checkpoint.folder, _task_type(checkpoint), {}, saved, checkpoint.config, None)


@dataclass(frozen=True)
class _Stored:
    """The tensors of a checkpoint by their paths in the base model, whatever class it was saved from.

    `settings` is the config of the base model, as transformers reads it.
    """

    checkpoint: Checkpoint
    settings: Any

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors by their names in the files."""
        return stored_shapes(self.checkpoint.weights)

    @cached_property
    def tensors(self) -> CheckpointTensors:
        """The tensors, by which values are read."""
        return CheckpointTensors(self.checkpoint)

    @cached_property
    def model(self) -> Any:
        """The base model in transformers, without values."""
        import torch
        from transformers import AutoModel

        with quiet_libraries(), torch.device("meta"):
            return AutoModel.from_config(self.settings, trust_remote_code=False)

    @cached_property
    def paths(self) -> set[str]:
        """The paths of the base model's parameters."""
        return {path for path, _ in self.model.named_parameters()}

    @cached_property
    def of_base(self) -> dict[str, str]:
        """The names in the files of the base model's parameters, by their paths."""
        prefix = f"{self.model.base_model_prefix}."
        named = {current(name).removeprefix(prefix): name for name in self.shapes}
        return {path: name for path, name in named.items() if path in self.paths}


def _equal(base: _Stored, head: _Stored, path: str) -> bool:
    """Return whether both checkpoints have the tensor `path` of the base model, with equal values."""
    if path not in head.of_base:
        return False
    ours, theirs = base.of_base[path], head.of_base[path]
    if base.shapes[ours] != head.shapes[theirs]:
        return False
    one = base.tensors.parameter(ours, *base.shapes[ours])
    two = head.tensors.parameter(theirs, *head.shapes[theirs])
    return all(np.array_equal(a, b) for a, b in zip(one.chunks(), two.chunks(), strict=True))


def _task_type(checkpoint: Checkpoint) -> str:
    """Return the task of the class of the weights. Raises CheckpointUnsupported for other heads."""
    for ending, task_type in TASK_OF_CLASS:
        if checkpoint.architecture.endswith(ending):
            return task_type
    if checkpoint.architecture.endswith("Model"):
        return FEATURE_EXTRACTION
    raise CheckpointUnsupported(
        f"{checkpoint.folder / 'config.json'} names the class {checkpoint.architecture or 'of no model'!r}; heads that "
        "share a backbone classify texts or tokens.",
        ALONE,
    )
