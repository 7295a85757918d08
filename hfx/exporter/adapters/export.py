"""Export adapters of one backbone: each becomes a published model of its own, and all share the backbone's net."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hfx import native
from hfx.errors import CheckpointUnsupported, HfxError, RepositoryError, UsageError
from hfx.exporter.adapters.adapted import ADAPTED
from hfx.exporter.adapters.adapter_config import ALONE, MERGE
from hfx.exporter.adapters.fit import check_fit, task_model
from hfx.exporter.adapters.folder import Adapter, find_adapters, is_adapter, read_adapter
from hfx.exporter.adapters.head import read_head
from hfx.exporter.adapters.merge import merged_checkpoint, task_of
from hfx.exporter.adapters.part import AdapterPart, Donor, donors, same_versions
from hfx.exporter.adapters.pool import Rooms
from hfx.exporter.adapters.steps import STEPS
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import export, make_plan
from hfx.exporter.source import Checkpoint, open_checkpoint
from hfx.manifest import Manifest
from hfx.names import Kind, check_name
from hfx.repository import check_target

KINDS = frozenset({Kind.CLASSIFIER, Kind.TOKENS, Kind.CROSS_ENCODER, Kind.EMBEDDER})
REFUSED = {"name": "--name", "verify_data": "--verify-data", "calibrate": "--calibrate", "searched": "--again"}


@dataclass(frozen=True)
class AdapterSet:
    """The adapters of a `backbone` that one command exports, and the rooms of the nets that they share.

    `sha256` is the hash of the backbone's files. `heads` has the layers of each adapter's head, with their numbers of
    outputs. Adapters with the same task are a group, which shares a net with its `rooms`, also with the group's
    adapters that are `published` and stay.
    """

    backbone: Checkpoint
    sha256: str
    adapters: tuple[Adapter, ...]
    groups: Mapping[str, str]
    heads: Mapping[str, Mapping[str, int]]
    rooms: Mapping[str, Rooms]
    published: Mapping[str, list[Donor]]
    options: ExportOptions

    def describe(self) -> dict[str, object]:
        """Return the entries that `--dry-run` prints about the adapters."""
        return {
            "backbone": self.backbone.id,
            "adapters": [
                {
                    "name": each.name,
                    "products": len(each.products),
                    "rank": max((pair.rank for pair in each.products.values()), default=0),
                    "head": dict(self.heads[each.name]),
                }
                for each in self.adapters
            ],
        }

    def notes(self) -> list[str]:
        """Return what the user should know before the export begins."""
        labels = [each.name for each in self.adapters if self.heads[each.name] and "id2label" not in each.config]
        own = {"", Path(self.backbone.id).name, self.backbone.folder.resolve().name}
        trained = {each.name: each.settings.trained_on for each in self.adapters if each.settings}
        others = {name: backbone for name, backbone in trained.items() if Path(backbone).name not in own}
        found = [f"{name} was trained on {other}, by its adapter_config.json." for name, other in others.items()]
        if labels:
            found.append(f"{', '.join(labels)}: no config.json names the labels, so they are LABEL_0, LABEL_1 ...")
        return found

    def lines(self) -> list[str]:
        """Return a line of text about each adapter."""
        described: Any = self.describe()["adapters"]
        return [
            f"{each['name']:20} rank {each['rank']} in {each['products']} products; head: "
            + (", ".join(f"{path} ({outputs})" for path, outputs in each["head"].items()) or "the backbone's")
            for each in described
        ]


def named_adapters(options: ExportOptions) -> dict[str, Path]:
    """Return the folders of the adapters that --adapters and --adapter name, by name. Raises UsageError."""
    found = {} if options.adapters is None else find_adapters(options.adapters)
    for each in options.adapter:
        name, equals, path = each.partition("=")
        if not equals or not path:
            raise UsageError(f"--adapter {each!r} names no folder.", "Write --adapter NAME=FOLDER.")
        if check_name(name) in found:
            raise UsageError(f"Two adapters have the name {name!r}.", "Give one of them another name.")
        if not Path(path).is_dir():
            raise UsageError(f"--adapter {each}: there is no folder {path}.", "Correct the path.")
        found[name] = Path(path)
    return found


def read_set(backbone: Checkpoint, folders: Mapping[str, Path], options: ExportOptions) -> AdapterSet:
    """Read and check all adapters, before any of them is exported.

    Raises ModuleNotFoundError without peft, UsageError for options that adapters don't have, and CheckpointUnsupported,
    CheckpointCorrupt and CheckpointUnsafe for adapters that can't be exported, or don't fit those that are published.
    """
    for field, option in REFUSED.items():
        if getattr(options, field) != getattr(ExportOptions, field):
            raise UsageError(f"Adapters are exported without {option}.", f"Leave {option} out.")
    if options.device == "gpu":
        raise UsageError("Adapters are for CPUs.", MERGE)
    if options.cpu_runtime not in ("auto", "native"):
        raise UsageError(f"Adapters need the native runtime, not {options.cpu_runtime}.", "Leave --cpu-runtime out.")
    native.library()
    if any(map(is_adapter, folders.values())):
        importlib.import_module("peft")  # before any work; an error says how to install it
    adapters = tuple(
        read_adapter(name, folder) if is_adapter(folder) else read_head(name, folder, backbone)
        for name, folder in folders.items()
    )
    for name in folders:
        try:
            check_target(options.repository, name, options.force)
        except RepositoryError as error:
            fix = "Use --force to replace it, or give the adapter another name: --adapter NAME=FOLDER."
            raise RepositoryError(error.message, fix) from error
    models = {task: task_model(backbone, task) for task in {task_of(each) for each in adapters}}
    for each in adapters:
        check_fit(each, models[task_of(each)])
    heads, sha256, rooms = {each.name: _head(each) for each in adapters}, backbone.sha256(), dict[str, Rooms]()
    precision = "int8" if options.quantize else options.precision or "fp32"
    groups = {each.name: f"{options.task or task_of(each)} {precision}" for each in adapters}
    published = {group: donors(options.repository, sha256, group, folders) for group in sorted({*groups.values()})}
    for group, others in published.items():
        alike = [each for each in adapters if groups[each.name] == group]
        own = Rooms.of((each.products for each in alike), (heads[each.name] for each in alike))
        rooms[group] = others[0].layout.rooms if others else own
    chosen = replace(options, device="cpu", cpu_runtime="auto")
    return AdapterSet(backbone, sha256, adapters, groups, heads, rooms, published, chosen)


def export_set(
    chosen: AdapterSet, progress: Callable[[str], AbstractContextManager[Any]], gate: bool = True
) -> Iterator[tuple[str, Manifest | HfxError]]:
    """Export one adapter after the other, and yield its name with its manifest, or with the reason why it failed.

    Without `gate`, their answers are not compared, so that models can be measured whose answers don't matter.
    """
    published = {group: [*others] for group, others in chosen.published.items()}
    for adapter in chosen.adapters:
        alike = published[chosen.groups[adapter.name]]
        with progress(f"Exporting {adapter.name}"):
            try:
                outcome: Manifest | HfxError = _export(chosen, adapter, alike, gate)
            except HfxError as error:
                outcome = error
        if isinstance(outcome, Manifest):
            alike.append(Donor(chosen.options.repository, outcome))
        yield adapter.name, outcome


def _export(chosen: AdapterSet, adapter: Adapter, published: list[Donor], gate: bool) -> Manifest:
    backbone, group = chosen.backbone, chosen.groups[adapter.name]
    with tempfile.TemporaryDirectory(prefix="hfx-adapter-") as temporary:
        if adapter.settings is None:
            merged = open_checkpoint(str(adapter.folder))
        else:
            target = Path(temporary) / backbone.folder.resolve().name
            merged_checkpoint(backbone, adapter, target)
            merged = open_checkpoint(str(target))
        plan = make_plan(merged, replace(chosen.options, name=adapter.name))
        if not isinstance(plan, EncoderPlan) or plan.kind.name not in KINDS:
            raise CheckpointUnsupported(
                f"{adapter.folder}: an adapter for {plan.kind.task} can't share its backbone.",
                MERGE if adapter.settings else ALONE,
            )
        part = AdapterPart(
            backbone=backbone,
            sha256=chosen.sha256,
            adapter=adapter,
            rooms=chosen.rooms[group],
            group=group,
            labels_room=_labels_room(chosen, adapter, plan),
            published=published,
            donor=next((each for each in published if _makes(plan, chosen.rooms[group], each)), None),
        )
        variant = next(each for each in ADAPTED if each.precision == plan.built["cpu"])
        whole = replace(plan, variants={"cpu": (variant(part, plan.max_length),)}, strict=True)
        return export(whole, lambda title: nullcontext(), [step for step in STEPS if gate or not step.gate])


def _makes(plan: EncoderPlan, rooms: Rooms, donor: Donor) -> bool:
    """Return whether the plan would make the donor's net again, byte for byte."""
    stated = donor.manifest.choices
    made = stated.get("kind"), stated.get("graph"), donor.record["max_length"]
    wanted = str(plan.kind.name), plan.graph, plan.max_length
    return made == wanted and donor.layout.has(rooms) and same_versions(donor)


def _head(adapter: Adapter) -> dict[str, int]:
    """Return the layers of the head that an adapter brings, and their numbers of outputs."""
    layers = {name.rpartition(".") for name in adapter.saved}
    return {path: len(adapter.saved[f"{path}.weight"]) for path, _, _ in sorted(layers)}


def _labels_room(chosen: AdapterSet, adapter: Adapter, plan: EncoderPlan) -> int:
    """Return the number of logits of the net; 0 if no head is the adapters' own."""
    rooms = chosen.rooms[chosen.groups[adapter.name]]
    if plan.kind.name is Kind.EMBEDDER or not rooms.heads:
        return 0
    labels = plan.kind.net_outputs(plan.checkpoint.config)[0].dims[-1]
    last = [path for path, count in chosen.heads[adapter.name].items() if count == labels]
    return rooms.heads[last[-1]] if last else 0
