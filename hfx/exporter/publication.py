"""What the end of every export shares: the manifest, the repository's rules, and the move into the repository.

Owns what a manifest is told; how a model was built and verified is the pipeline's.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hfx.errors import LintFailed
from hfx.exporter.plan import Plan
from hfx.manifest import Manifest, Precision, Source, TritonTarget, created_now, hash_folder, write_manifest
from hfx.names import GENERATION_TASKS, MANIFEST_FILE
from hfx.releases import for_generators
from hfx.repository import Staging
from hfx.repository.lint import lint

VERSIONED = ("hfx", "torch", "transformers", "tokenizers", "optimum", "onnx", "onnxruntime", "openvino", "numpy")
FINDINGS_SHOWN = 5


@dataclass(frozen=True)
class GraphFacts:
    """Opset and IR version of the ONNX files."""

    opset: int
    ir: int


def seal(
    plan: Plan, staging: Staging, graph: GraphFacts, parity: Mapping[str, Any], choices: Mapping[str, Any]
) -> Manifest:
    """Write the manifest of the staged folders: every file hashed, every figure kept."""
    root = staging.root
    listed = sorted(path.name for path in root.iterdir())
    manifest = Manifest(
        name=plan.name,
        task=plan.task.task,
        source=Source(_source_id(plan), plan.checkpoint.revision, plan.checkpoint.sha256()),
        precision=Precision(plan.cpu_precision, plan.gpu_precision),
        opset=graph.opset,
        ir=graph.ir,
        triton=TritonTarget(plan.release.tag, _minimum(plan)),
        folders=(plan.name, *(name for name in listed if name != plan.name)),
        files={name: entry for folder in listed for name, entry in hash_folder(root / folder, root).items()},
        versions=_versions(),
        created=created_now(),
        parity=parity,
        choices={"graph": plan.graph, **choices},
    )
    write_manifest(manifest, root / plan.name / MANIFEST_FILE)
    return manifest


def check_rules(plan: Plan, staging: Staging) -> None:
    """Raise LintFailed where the staged folders break a rule of the repository."""
    findings = [finding for finding in lint(staging.root, _minimum(plan)) if finding.severity == "error"]
    if findings:
        lines = "; ".join(f"{each.rule} {each.path}: {each.message}" for each in findings[:FINDINGS_SHOWN])
        raise LintFailed(f"The generated repository breaks {len(findings)} rules: {lines}", "Please report this.")


def _minimum(plan: Plan) -> str:
    """The oldest Triton release that can serve the model."""
    return for_generators(plan.release).tag if plan.task.task in GENERATION_TASKS else plan.release.tag


def _source_id(plan: Plan) -> str:
    """A hub id as it is; of a folder the name alone: a published file holds no path of this machine."""
    return plan.checkpoint.id if plan.checkpoint.revision else plan.checkpoint.folder.name


def _versions() -> dict[str, str]:
    found = {}
    for package in VERSIONED:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # openvino is optional
    return found
