"""The report of `hfx verify --report`: what was compared and measured, as JSON, or as an HTML page for people.

`contents` makes one mapping of plain values from the manifest and from the figures of a verification. The page shows
every value of this mapping, so that both files say the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path, PurePosixPath
from time import perf_counter
from typing import Any

import numpy as np

import hfx
from hfx import native
from hfx.batch.job import this_machine
from hfx.cli.perf.loads import check_output
from hfx.errors import NativeMissing, UsageError, VerificationFailed
from hfx.exporter.encoder.kinds.kind import Comparison
from hfx.exporter.variants import VARIANTS
from hfx.exporter.verify import Published, Rerun, comparisons
from hfx.extras import processor
from hfx.local import as_tensors
from hfx.manifest import Manifest, created_now, hash_file, model_sha256, verify_files
from hfx.names import ATTENTION_MASK, INPUT_TOKENS, TOKENIZE_SUFFIX
from hfx.perf.report import render
from hfx.python_backends.encoding import open_encoder, tensors
from hfx.repository.config_pbtxt import CONFIG, MAX_CONFIG_BYTES, made_by
from hfx.repository.staging import write_output
from hfx.strict_json import read_text

FORMAT = 1
UNRECORDED, UNMEASURED = "not recorded by this export", "not measured in this run"
LENGTHS = {16: "up to 16", 64: "17 to 64", 256: "65 to 256", math.inf: "more than 256"}  # tokens
Fields = dict[str, Any]


def check_report(path: Path, repository: Path, data: Path | None) -> None:
    """Raise UsageError if no report can be written to `path`."""
    if path.suffix not in (".html", ".json"):
        raise UsageError(f"{path} ends neither in .html nor in .json (--report).", "Name the report proof.html.")
    check_output(path, "--report")
    if path.resolve().is_relative_to(repository.resolve()) or (data and path.resolve() == data.resolve()):
        raise UsageError(f"{path} (--report) is in the repository, or is the data.", "Give another --report.")
    for package in ("tokenizers", *(("jinja2",) if path.suffix == ".html" else ())):
        import_module(package)  # a missing one is named now, not after the work


@contextmanager
def reported(path: Path, published: Published, repository: Path, figures: Fields) -> Iterator[None]:
    """Write the report at the end of the block, from the `figures` that the block adds, also if verification fails.

    Raises VerificationFailed before the block if the published files have changed.
    """
    failure: VerificationFailed | None = None
    began = perf_counter()
    try:
        if problems := verify_files(published.manifest, repository):
            reasons = "\n".join(problem.message for problem in problems)
            message = f"{published.manifest.name} is not as it was published:\n{reasons}"
            raise VerificationFailed(message, "Export it again with --force.")
        yield
    except VerificationFailed as error:
        failure = error
    outcome = {"result": "failed", "failure": failure.message} if failure else {"result": "passed"}
    values = outcome | contents(published, repository, figures, perf_counter() - began)
    is_page = path.suffix == ".html"
    text = render("verification.html", report=values) if is_page else json.dumps(values, indent=1, allow_nan=False)
    write_output(path, text, "--report")
    if failure:
        raise failure


def of_rerun(published: Published, rerun: Rerun, repository: Path) -> Fields:
    """Return the figures that only the report has: the agreement by length, and answers alone and in a batch."""
    groups: dict[str, list[Comparison]] = {title: [] for title in LENGTHS.values()}
    lengths = _lengths(published, rerun, repository)
    for length, comparison in zip(lengths, comparisons(published, rerun.answers), strict=True):
        groups[next(LENGTHS[most] for most in LENGTHS if length <= most)].append(comparison)
    alone = len(rerun.alone)
    rows: list[Fields] = [
        {
            "tokens": title,
            "requests": len(group),
            "equal": sum(comparison.same for comparison in group),
            "ties": sum(comparison.tie for comparison in group) if published.kind else None,
            "max_drift": float(np.max([comparison.drift for comparison in group])) if published.kind else None,
        }
        for title, group in groups.items()
        if group
    ]
    independence = {"requests_also_run_alone": alone, "equal_answers": alone - rerun.other_alone}
    return {"agreement_by_length": rows, "batch_independence": independence}


def _lengths(published: Published, rerun: Rerun, repository: Path) -> list[int]:
    """Return how many tokens of each recorded request the model reads."""
    if published.kind is None:
        return [answer[INPUT_TOKENS] for answer in rerun.answers]
    encoder = open_encoder(repository / (published.manifest.name + TOKENIZE_SUFFIX) / "1")
    rows: Any = encoder.encode([encoder.items(as_tensors(request))[0] for request in published.recorded.requests])
    encoded = tensors([[row] for row in rows], encoder.settings)
    return [int(np.count_nonzero(request[ATTENTION_MASK] > 0)) for request in encoded]


def contents(published: Published, repository: Path, figures: Fields, seconds: float) -> Fields:
    """Return the facts of the report as plain values. A fact that the manifest lacks is UNRECORDED."""
    manifest = published.manifest
    parity, choices = dict[str, Any](manifest.parity), dict[str, Any](manifest.choices)
    values = {
        "format": FORMAT,
        "model": {
            "name": manifest.name, "task": str(manifest.task), "kind": str(published.kind or "generator"),
            "architecture": choices.get("architecture", UNRECORDED), "labels": list(published.labels) or None,
            "checkpoint": asdict(manifest.source), "model_sha256": model_sha256(manifest.files),
            "precision": asdict(manifest.precision), "exported_at": manifest.created,
            "exported_by": made_by(read_text(repository / manifest.name / CONFIG, MAX_CONFIG_BYTES)) or UNRECORDED,
            "versions": dict(manifest.versions),
        },
        "verified": {
            "at": created_now(), "hfx": hfx.__version__, "device": figures["device"],
            "through": figures["url"] or "this process",
        },
        "compared": {
            "texts": choices.get("texts", UNRECORDED),
            "tokenized_alike": parity.get("tokenized_alike", UNRECORDED),
            "recorded_requests": len(published.recorded.requests),
        },
        "figures_at_export": {
            device: {"limits": UNRECORDED} | parity[device] for device in ("cpu", "gpu") if device in parity
        },
        "figures_of_this_run": figures.get("parity", UNMEASURED),
        "agreement_by_length": figures.get("agreement_by_length", UNMEASURED),
        "batch_independence": figures.get("batch_independence", UNMEASURED),
        "kernels": "not known: they are the server's" if figures["url"] else _kernels(manifest),
        "labelled_data_at_export": parity.get("data", UNRECORDED),
        "labelled_data_of_this_run": figures.get("data", UNMEASURED),
        "times": {
            "seconds_of_export_steps": choices.get("seconds", UNRECORDED),
            "milliseconds_of_runtimes": (choices.get("cpu_runtime") or {}).get("milliseconds") or UNRECORDED,
            "seconds_of_this_run": seconds,
        },
        "files": [
            {"path": path, "precision": _precision(manifest, path), "bytes": entry.size, "sha256": entry.sha256}
            for path, entry in manifest.files.items()
        ],
    }  # fmt: skip
    plain: Fields = _plain(values)
    return plain


def _precision(manifest: Manifest, path: str) -> str:
    """Return the precision of a net's graph or weights, or of an engine's file; empty for other files."""
    folders, of_files = PurePosixPath(path).parts, {variant.file: variant.precision for variant in VARIANTS}
    of_engine = getattr(manifest.precision, folders[2], None) if len(folders) > 3 else None  # NAME_stream/1/DEVICE/
    return of_files.get(folders[-1].removesuffix(".data")) or of_engine or ""


def _kernels(manifest: Manifest) -> Fields:
    """Return what decides which kernels run in this process. A native library that is not the model's is not used."""
    machine, published = this_machine(in_process=True), {entry.sha256 for entry in manifest.files.values()}
    facts = {"processor": processor(), "instructions": list(machine.instructions), "versions": dict(machine.versions)}
    try:
        own = {"native_kernels": native.kernels() or "none", "native_library": hash_file(native.library()).sha256}
        own["native_library_of_the_model"] = "the same" if own["native_library"] in published else "none, or another"
    except NativeMissing as error:
        own = {"native_kernels": error.message}
    return {**facts, **own}


def _plain(value: Any) -> Any:
    """Return `value` with figures of six digits, and without members that are None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items() if member is not None}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value
