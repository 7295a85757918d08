"""The parts that the steps of both kinds of exports share: their artefacts, and the last steps.

The last steps write the manifest, check the repository's rules, and move the staged folders into the repository.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from hfx.exporter.gate_texts import GateTexts
from hfx.exporter.plan import Plan
from hfx.extras import versions
from hfx.manifest import (
    FileEntry,
    Manifest,
    Precision,
    Source,
    TritonTarget,
    created_now,
    hash_file,
    hash_folder,
    is_config,
    model_sha256,
    write_manifest,
)
from hfx.names import GENERATION_TASKS, MANIFEST_FILE, MODEL_SHA256
from hfx.releases import for_generators
from hfx.repository import Staging, publish
from hfx.repository.config_pbtxt import MAX_CONFIG_BYTES, parse_config
from hfx.repository.edit import rendered
from hfx.repository.lint import check_rules
from hfx.strict_json import read_text

VERSIONED = ("hfx", "torch", "transformers", "tokenizers", "optimum", "onnx", "onnxruntime", "numpy")


@dataclass(frozen=True)
class Artefacts:
    """The results of the steps of both kinds of exports; each kind has further fields."""

    staging: Staging
    tokenizer: Any = None
    texts: GateTexts = field(default_factory=GateTexts)
    parity: dict[str, Any] = field(default_factory=dict)  # figures for the manifest
    choices: dict[str, Any] = field(default_factory=dict)  # decisions for the manifest
    manifest: Manifest | None = None


P = TypeVar("P", bound=Plan)
A = TypeVar("A", bound=Artefacts)


@dataclass(frozen=True)
class Step(Generic[P, A]):
    """A step, and the title that is shown while it runs.

    A `gate` step compares with the checkpoint; a `labelled` step is only for plans with labelled data.
    """

    title: str
    run: Callable[[P, A], A]
    gate: bool = False
    labelled: bool = False


def seal(plan: Plan, artefacts: A, graph: Path) -> A:
    """Write the manifest of the staged folders, with a hash of each file and all figures. `graph` is an ONNX file."""
    import onnx

    net = onnx.load(graph, load_external_data=False)
    opset = next(entry.version for entry in net.opset_import if entry.domain in ("", "ai.onnx"))
    root = artefacts.staging.root
    listed = sorted(path.name for path in root.iterdir())
    files = {name: entry for folder in listed for name, entry in hash_folder(root / folder, root).items()}
    files |= stamp(root, plan.name, files, plan.parameters)
    checkpoint = plan.checkpoint
    manifest = Manifest(
        name=plan.name,
        task=plan.kind.task,
        # A hub id, or only the name of a folder: a published file has no path of this machine.
        source=Source(
            checkpoint.id if checkpoint.revision else checkpoint.folder.name, checkpoint.revision, checkpoint.sha256()
        ),
        precision=Precision(plan.built.get("cpu"), plan.built.get("gpu")),
        opset=opset,
        ir=net.ir_version,
        triton=TritonTarget(plan.release.tag, _minimum(plan)),
        folders=(plan.name, *(name for name in listed if name != plan.name)),
        files=files,
        versions=versions(VERSIONED),
        created=created_now(),
        parity=artefacts.parity,
        choices={"graph": plan.graph, "architecture": checkpoint.architecture, **artefacts.choices},
    )
    write_manifest(manifest, root / plan.name / MANIFEST_FILE)
    return replace(artefacts, manifest=manifest)


def stamp(
    root: Path, name: str, files: Mapping[str, FileEntry], parameters: Mapping[str, str] = {}
) -> dict[str, FileEntry]:
    """Write `parameters` and the model's SHA-256 into the configurations of its entry point.

    Return their new entries.
    """
    values, stamped = {**parameters, MODEL_SHA256: model_sha256(files)}, {}
    for path in (path for path in files if path.startswith(f"{name}/") and is_config(path)):
        text = read_text(root / path, MAX_CONFIG_BYTES)
        config = parse_config(text)
        for key, value in values.items():
            config.parameters[key].string_value = value
        (root / path).write_text(rendered(text, config), encoding="utf-8")
        stamped[path] = hash_file(root / path)
    return stamped


def lint_staged(plan: Plan, artefacts: A) -> A:
    """Check the repository's rules on the staged folders. Raises LintFailed if they break one."""
    check_rules(artefacts.staging.root, _minimum(plan), "Please report this.")
    return artefacts


def publish_folders(plan: Plan, artefacts: A) -> A:
    """Move the staged folders into the repository, by renames."""
    publish(artefacts.staging, replace=plan.force)
    return artefacts


def _minimum(plan: Plan) -> str:
    """Return the oldest Triton release that can serve the model."""
    return for_generators(plan.release).tag if plan.kind.task in GENERATION_TASKS else plan.release.tag
