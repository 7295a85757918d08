"""An adapter in the export of its model: its own weights, and the net that it shares with others on its backbone.

The net's files of all adapters of a backbone are equal, byte for byte, so that a server opens one of them for all. They
are made for the first adapter. A later one gets links to the files of a published one, the donor.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hfx import names
from hfx.errors import CheckpointUnsupported
from hfx.exporter.adapters.folder import Adapter
from hfx.exporter.adapters.pool import LAYOUT_FILE, Layout, Matrix, Rooms
from hfx.exporter.quiet import quiet_libraries
from hfx.exporter.source import Checkpoint
from hfx.exporter.steps import VERSIONED
from hfx.extras import versions
from hfx.manifest import Manifest
from hfx.repository.catalog import models

if TYPE_CHECKING:
    import torch

RECORD = "adapter"  # in the manifest's choices
LEAST_LINKED = 1 << 16  # bytes: smaller files are copies
# The first texts of the gate that are also answered in a batch of several adapters, and the most of these adapters.
MIXED_TEXTS, MIXED_ADAPTERS = 64, 16


@dataclass(frozen=True)
class Donor:
    """A published adapter on the same backbone, whose net a further adapter shares."""

    repository: Path
    manifest: Manifest

    @property
    def net(self) -> Path:
        """The version folder of its net."""
        return self.repository / (self.manifest.name + names.NET_SUFFIX) / "1"

    @cached_property
    def layout(self) -> Layout:
        """Where a slot of the pool has which weights."""
        return Layout.read(self.net / LAYOUT_FILE)

    @property
    def record(self) -> Mapping[str, Any]:
        """What its manifest says about the backbone and the adapter."""
        record = self.manifest.choices[RECORD]
        assert isinstance(record, dict)
        return record


def donors(repository: Path, backbone: str, group: str, other_than: Collection[str] = ()) -> list[Donor]:
    """Return the published adapters of a group on the checkpoint with the SHA-256 `backbone`, sorted by name."""
    if not repository.is_dir():
        return []
    found = (entry.manifest for entry in models(repository) if entry.manifest and entry.name not in other_than)
    recorded = [Donor(repository, manifest) for manifest in found if isinstance(manifest.choices.get(RECORD), dict)]
    wanted = backbone, group
    return [each for each in recorded if (each.record.get("backbone_sha256"), each.record.get("group")) == wanted]


@dataclass(frozen=True, kw_only=True)
class AdapterPart:
    """An adapter on its `backbone`, whose files have the hash `sha256`, and the `rooms` that its net has for others.

    Only adapters of one `group`, which have the same task and precision, share a net. `labels_room` is the number of
    logits of the net, which may be more than the adapter has labels; 0 if the net is as wide as the backbone's own.
    `published` are the adapters of the group, and `donor` is the one of them whose net it shares; the first adapter has
    none.
    """

    backbone: Checkpoint
    sha256: str
    adapter: Adapter
    rooms: Rooms
    labels_room: int
    group: str
    published: Sequence[Donor]
    donor: Donor | None

    def record(self) -> dict[str, Any]:
        """Return what the manifest says about the adapter."""
        ranks = {pair.rank for pair in self.adapter.products.values()}
        return {
            "backbone": self.backbone.id if self.backbone.revision else self.backbone.folder.name,
            "backbone_sha256": self.sha256,
            "group": self.group,
            "products": len(self.adapter.products),
            "rank": max(ranks, default=0),
        }

    @contextmanager
    def on_backbone(self, model: torch.nn.Module) -> Iterator[None]:
        """Return a context in which the adapted layers of the merged `model` have the backbone's own weights."""
        import torch

        own = self._own_model(model)
        merged: dict[Any, torch.Tensor] = {}
        with torch.no_grad():
            try:
                for path in self.rooms.ranks:
                    weight: Any = model.get_submodule(path).weight
                    merged[weight] = weight.clone()
                    weight.copy_(own.get_submodule(path).weight)
                yield
            finally:
                for weight, values in merged.items():
                    weight.copy_(values)

    def _own_model(self, merged: Any) -> torch.nn.Module:
        """Return the backbone in the class of the `merged` model, whose head may be another."""
        import torch

        checkpoint = self.backbone.home
        with quiet_libraries():
            own: torch.nn.Module = type(merged).from_pretrained(
                checkpoint.view,
                config=merged.config,
                local_files_only=True,
                use_safetensors=not checkpoint.pickled,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                weights_only=True,
            )
        return own

    def slot(self, layout: Layout, merged: torch.nn.Module) -> Matrix:
        """Return the adapter's slot [stride]; the layers of its head are those of the `merged` model.

        Raises CheckpointUnsupported if it does not fit.
        """
        try:
            layout.check({name.rpartition(".")[0] for name in self.adapter.saved})
            heads = {path: _linear(merged, path) for path in layout.rooms.heads}
            return layout.slot(self.adapter.products, heads)
        except CheckpointUnsupported as error:
            raise error.with_message(f"{self.adapter.folder}: {error.message}") from error


def link_to_donor(donor: Donor, root: Path, name: str) -> None:
    """Replace each large file of the staged model NAME by a link to the donor's file of the same place and content."""
    for folder in root.iterdir():
        member = donor.repository / (donor.manifest.name + folder.name.removeprefix(name))
        for file in folder.rglob("*"):
            other = member / file.relative_to(folder)
            if not file.is_file() or file.stat().st_size < LEAST_LINKED or not other.is_file():
                continue
            if not file.samefile(other) and filecmp.cmp(file, other, shallow=False):
                file.unlink()
                link_or_copy(other, file)


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source`, or a copy if that is not possible, as between file systems."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target)


def same_versions(donor: Donor) -> bool:
    """Return whether this installation would make the donor's net again, byte for byte."""
    return dict(donor.manifest.versions) == versions(VERSIONED)


def _linear(model: torch.nn.Module, path: str) -> tuple[Matrix, Matrix]:
    """Return weight [outputs, inputs] and bias [outputs] of a linear."""
    layer: Any = model.get_submodule(path)
    weight: Matrix = layer.weight.detach().numpy()
    bias = np.zeros(len(weight), np.float32) if layer.bias is None else layer.bias.detach().numpy()
    return weight, bias
