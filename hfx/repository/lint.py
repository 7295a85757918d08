"""The linter: every rule, and one function that applies them to a repository.

It works offline, on repositories that hfx didn't make too, and changes nothing; what it can't read is a finding.
"""

from __future__ import annotations

import os
from pathlib import Path

from hfx.releases import MINIMUM_SECURE, release
from hfx.repository.rules import (
    ensembles,
    files,
    manifests,
    onnx_files,
    python_models,
    scheduling,
)
from hfx.repository.subject import Finding, Rule, read_subject

RULES = (
    Rule("HFX101", "error", "config.pbtxt is missing", files.missing_config),
    Rule("HFX102", "error", "a configuration can't be parsed", files.unreadable_config),
    Rule("HFX103", "error", "the name in a configuration is not the folder's", files.other_name),
    Rule("HFX104", "warning", "a backend or platform that Triton's images don't bring", files.unknown_backend),
    Rule("HFX105", "error", "neither backend nor platform", files.no_backend),
    Rule("HFX106", "error", "no version folder", files.no_version),
    Rule("HFX107", "error", "the model file is missing", files.missing_model_file),
    Rule("HFX108", "error", "a link leads out of the repository", files.link_outside),
    Rule("HFX109", "error", "a staging folder that stops Triton", files.leftover_staging),
    Rule("HFX110", "warning", "configs/cpu.pbtxt without configs/gpu.pbtxt", files.missing_variant),
    Rule("HFX111", "warning", "a path of one machine", files.machine_path),
    Rule("HFX201", "error", "hfx.json is damaged", manifests.damaged),
    Rule("HFX202", "error", "a published file is missing", manifests.missing),
    Rule("HFX203", "error", "a published file was changed", manifests.changed),
    Rule("HFX204", "error", "a file that was not published", manifests.unlisted),
    Rule("HFX301", "error", "a tensor is declared twice", files.duplicate_tensor),
    Rule("HFX302", "error", "a tensor is declared incompletely", files.incomplete_tensor),
    Rule("HFX303", "error", "a dimension that no tensor has", files.wrong_dimension),
    Rule("HFX401", "error", "an ensemble runs an unknown model", ensembles.unknown_model),
    Rule("HFX402", "error", "an ensemble maps a tensor that the member lacks", ensembles.unknown_tensor),
    Rule("HFX403", "error", "a required input of a step is not mapped", ensembles.unmapped_input),
    Rule("HFX404", "error", "a step reads a tensor that nothing produces", ensembles.never_produced),
    Rule("HFX405", "error", "an ensemble's output that no step produces", ensembles.output_without_source),
    Rule("HFX406", "error", "a tensor of an ensemble is produced twice", ensembles.produced_twice),
    Rule("HFX407", "error", "data types disagree along an ensemble", ensembles.data_types),
    Rule("HFX408", "error", "dims disagree along an ensemble", ensembles.dimensions),
    Rule("HFX409", "error", "batches that a member of an ensemble can't carry", ensembles.batch_size),
    Rule("HFX410", "error", "a decoupled member of an ensemble", ensembles.decoupled_member),
    Rule("HFX411", "error", "an ensemble with instances or warm-up of its own", ensembles.own_instances),
    Rule("HFX412", "error", "an ensemble without steps", ensembles.no_steps),
    Rule("HFX413", "warning", "an optional input feeds a required one", ensembles.optional_into_required),
    Rule("HFX414", "error", "a tensor of an ensemble that nothing uses", ensembles.unused),
    Rule("HFX501", "warning", "preferred_batch_size is set", scheduling.preferred_batch_size),
    Rule("HFX502", "warning", "a queue without bounds", scheduling.unbounded_queue),
    Rule("HFX503", "warning", "dynamic batching without batches", scheduling.batching_without_batches),
    Rule("HFX504", "error", "KIND_GPU in the configuration for CPUs", scheduling.gpu_in_cpu_config),
    Rule("HFX505", "warning", "more threads than cores", scheduling.oversubscribed),
    Rule("HFX506", "error", "the response cache of a generator", scheduling.cached_generator),
    Rule("HFX601", "error", "an ONNX file can't be read", onnx_files.unreadable),
    Rule("HFX602", "error", "the opset is too new for the Triton release", onnx_files.opset),
    Rule("HFX603", "error", "the IR version is too new for the Triton release", onnx_files.ir_version),
    Rule("HFX604", "error", "an int8 file on a GPU", onnx_files.int8_on_gpu),
    Rule("HFX605", "warning", "operators of one runtime on a GPU", onnx_files.contrib_on_gpu),
    Rule("HFX606", "error", "a tensor that the ONNX file lacks", onnx_files.unknown_tensor),
    Rule("HFX607", "error", "the number of inputs is not the ONNX file's", onnx_files.tensor_count),
    Rule("HFX608", "error", "data types differ from the ONNX file's", onnx_files.data_type),
    Rule("HFX609", "error", "dims differ from the ONNX file's", onnx_files.dimensions),
    Rule("HFX610", "error", "a ragged input that the ONNX file doesn't take flat", onnx_files.ragged),
    Rule("HFX611", "error", "ragged inputs without a batch_input", onnx_files.ragged_without_shape),
    Rule("HFX612", "error", "an optional input of a batching ONNX model", onnx_files.optional_input),
    Rule("HFX613", "error", "external weights are not beside the ONNX file", onnx_files.external_data),
    Rule("HFX701", "error", "a Python model without its file", python_models.missing_model),
    Rule("HFX702", "error", "a Python file does not compile", python_models.does_not_compile),
    Rule("HFX703", "error", "a CPU runtime that a generator has no files for", python_models.missing_runtime),
    Rule("HFX801", "error", "a Triton release that can't serve a model", manifests.too_old),
    Rule("HFX802", "warning", "a Triton release with known vulnerabilities", manifests.insecure),
)


def lint(repository: Path, triton_tag: str = MINIMUM_SECURE, cores: int | None = None) -> list[Finding]:
    """Every finding, sorted by path and line; an empty list for a healthy repository.

    `triton_tag` is the release that will serve it, `cores` are those of the machine that will (this one's by default).
    Raises RepositoryError when `repository` is no folder, and UsageError for a tag that hfx.releases doesn't know.
    """
    subject = read_subject(repository, release(triton_tag), cores or os.cpu_count() or 1)
    found = {
        Finding(rule.id, rule.severity, problem.path, problem.line, problem.message, problem.fix)
        for rule in RULES
        for problem in rule.check(subject)
    }
    return sorted(found, key=lambda finding: (finding.path, finding.line or 0, finding.rule, finding.message))
