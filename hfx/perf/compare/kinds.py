"""The kinds of comparison (devices, running servers, precisions, variants), and their candidates.

A precision is an export of the model's checkpoint into a temporary folder, or a published model. An export that fails
the gate has a note in the result, and no figures.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfx.client import ModelMetadata
from hfx.client.address import parse_address
from hfx.errors import HfxError, ModelMissing, UsageError
from hfx.local.models import published_metadata
from hfx.manifest import Manifest
from hfx.names import TOKENIZE_SUFFIX
from hfx.perf import measuring, settings
from hfx.perf.compare.candidates import (
    PRECISIONS,
    Candidate,
    CompareSpec,
    Session,
    changed,
    one_line,
    precision_on,
    running,
    served,
)
from hfx.perf.loadgen.log import Target
from hfx.repository.catalog import model
from hfx.repository.edit import scratch
from hfx.triton.server import DEVICES

if TYPE_CHECKING:
    from hfx.exporter.source import Checkpoint

MAX_VARIANTS = 16
MADE_BY = "hfx perf compare --variants"
KINDS = ("devices", "target", "precisions", "variants")


def labels(spec: CompareSpec) -> list[str]:
    """Return the labels of the candidates without preparing the candidates. Raises UsageError for invalid values."""
    if spec.kind == "target":
        return [*parse_targets(spec.values, spec.name)]
    if spec.kind == "variants":
        return [label_of(variant) for variant in parse_variants(spec.values)]
    return parse_names(spec.kind, ",".join(spec.values))


def metadata(spec: CompareSpec) -> ModelMetadata:
    """Return the metadata of the published model, or of the model on the first running server."""
    if spec.kind != "target":
        return published_metadata(spec.repository, spec.name)
    return measuring.metadata(next(iter(parse_targets(spec.values, spec.name).values())))


@contextmanager
def candidates_of(spec: CompareSpec, session: Session, notes: list[str]) -> Iterator[list[Candidate]]:
    """Yield the candidates, which are valid while the context lasts.

    `notes` gets a line for each candidate that can't be prepared. Raises UsageError for invalid values, and
    ModelMissing.
    """
    if spec.kind == "devices":
        yield [served(device, spec.repository, spec.name, device) for device in labels(spec)]
    elif spec.kind == "target":
        yield [running(label, target) for label, target in parse_targets(spec.values, spec.name).items()]
    else:
        with scratch(spec.repository, spec.name) as folder:
            if spec.kind == "variants":
                yield _variants(spec, folder)
            else:
                yield precision_candidates(spec, labels(spec), folder, notes, session)


def parse_names(kind: str, text: str) -> list[str]:
    """Parse devices ("cpu,gpu"), or precisions and published models ("fp32,int8,other"). Raises UsageError."""
    names, known = [part.strip() for part in text.split(",")], DEVICES if kind == "devices" else PRECISIONS
    if len(set(names)) < len(names) or "" in names or (kind == "devices" and not set(names) <= set(known)):
        raise UsageError(f"--{kind} {text!r} can't be compared.", f"Give some of {', '.join(known)}.")
    return names


def parse_targets(texts: Sequence[str], name: str) -> dict[str, Target]:
    """Parse texts such as "gpu=host:8001". Returns label -> the model `name` on that server.

    A label "cpu" or "gpu" is also taken as the server's device. Raises UsageError.
    """
    targets: dict[str, Target] = {}
    for text in texts:
        label, _, url = (part.strip() for part in text.partition("="))
        if not label or not url:
            raise UsageError(f"--target {text!r} is not a server.", "Give LABEL=HOST:PORT of its gRPC API.")
        if label in targets:
            raise UsageError(f"--target gives {label!r} twice.", "Give each server its own label.")
        if parse_address(url).protocol != "grpc":
            raise UsageError(f"{url} is an HTTP address.", "Give the gRPC port's as HOST:PORT.")
        targets[label] = Target(name, url, device=label if label in DEVICES else "")
    return targets


def parse_variants(texts: Sequence[str]) -> list[dict[str, int]]:
    """Return all combinations of texts such as "max_queue_delay=0,500us" and "instances=1,2". Raises UsageError."""
    values: dict[str, list[int]] = {}
    name = ""
    for part in (part.strip() for text in texts for part in text.split(",")):
        if "=" in part:
            name, _, part = part.partition("=")
            name = name.strip()
            if name in values:
                raise UsageError(f"--variants names {name} twice.", f"Write all its values at once: {name}=A,B.")
        if not name:
            raise UsageError(f"--variants {part!r} names no setting.", "Write it like instances=1,2.")
        values.setdefault(name, []).append(settings.parse(name, part))
    variants = [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]
    if not 2 <= len(variants) <= MAX_VARIANTS:
        raise UsageError(f"--variants makes {len(variants)} variants.", f"Give values for 2 to {MAX_VARIANTS}.")
    return variants


def label_of(variant: Mapping[str, int]) -> str:
    """Return the label of a variant, such as "instances=2, max_queue_delay=500us"."""
    return ", ".join(f"{name}={value}{'us' * settings.named(name).is_time}" for name, value in variant.items())


def _variants(spec: CompareSpec, folder: Path) -> list[Candidate]:
    """Return a candidate for each variant. Raises UsageError for a setting that the model lacks."""
    manifest = model(spec.repository, spec.name)
    candidates = []
    for number, variant in enumerate(parse_variants(spec.values)):
        edits = settings.edits(spec.repository, manifest, variant, spec.device)
        label, copy = label_of(variant), folder / f"variant{number}"
        candidates.append(changed(label, spec.repository, spec.name, edits, copy, MADE_BY, spec.device, {**variant}))
    return candidates


# Precisions

COMMAND = "hfx perf compare --precisions"


def precision_candidates(
    spec: CompareSpec, precisions: Sequence[str], folder: Path, notes: list[str], session: Session
) -> list[Candidate]:
    """Return a candidate for each of `precisions`: the published model if it has the precision, else an export.

    Raises ModelMissing; UsageError for a value that is neither a precision nor a published model; SourceError or
    UsageError if the checkpoint for an export can't be opened.
    """
    manifest = model(spec.repository, spec.name)
    for each in precisions:
        _check_precision(spec, each)
    exported = [each for each in precisions if each in PRECISIONS and each != precision_on(manifest, spec.device)]
    checkpoint = _checkpoint(manifest, spec.checkpoint) if exported else None
    candidates, runtimes = [], dict[str, str]()
    for each in precisions:
        if session.stop.is_set():
            break
        try:
            if checkpoint and each in exported:
                _export(spec, manifest, checkpoint, each, folder / each, session)
                repository, name = folder / each, spec.name
            else:
                repository, name = spec.repository, spec.name if each in PRECISIONS else each
            candidates.append(served(each, repository, name, spec.device))
            runtimes[each] = _runtime(model(repository, name))
        except HfxError as error:
            notes.append(f"{each} was not run: {one_line(error).rstrip('.')}.")
    if len(set(runtimes.values())) > 1:
        notes.append("The runtimes differ: " + ", ".join(f"{each} on {name}" for each, name in runtimes.items()) + ".")
    return candidates


def _check_precision(spec: CompareSpec, precision: str) -> None:
    try:
        if precision not in PRECISIONS:
            model(spec.repository, precision)
    except ModelMissing as error:
        known = ", ".join(PRECISIONS)
        message = (
            f"--precisions names {precision!r}, which is no precision ({known}) and no model in {spec.repository}."
        )
        raise UsageError(message, error.fix) from None


def _checkpoint(manifest: Manifest, given: str) -> Checkpoint:
    """Return the checkpoint of a published model: `given`, or else the checkpoint that the manifest names."""
    from hfx.exporter.source import open_checkpoint  # imports torch

    if given:
        return open_checkpoint(given)
    if manifest.source.revision is None and not Path(manifest.source.id).is_dir():
        raise UsageError(
            f"{manifest.name} was exported from the folder {manifest.source.id!r}, which does not exist here.",
            "Say where its checkpoint is: --checkpoint FOLDER.",
        )
    return open_checkpoint(manifest.source.id, manifest.source.revision)


def _export(
    spec: CompareSpec, manifest: Manifest, checkpoint: Checkpoint, precision: str, repository: Path, session: Session
) -> None:
    from hfx.exporter.options import ExportOptions
    from hfx.exporter.pipeline import export, make_plan

    options = ExportOptions(
        name=spec.name,
        task=str(manifest.task),
        precision=precision,  # type: ignore[arg-type]
        device=spec.device,  # type: ignore[arg-type]
        repository=repository,
        triton=manifest.triton.built_for,
        max_drop=spec.max_drop,
        strict=precision in ("int8", "int4"),  # each row has one precision
        command=f"{COMMAND} {precision}",
        **_kept(spec, manifest, precision),
    )

    def step(title: str) -> AbstractContextManager[None]:
        session.say(f"{precision}: {title}")
        return nullcontext()

    export(make_plan(checkpoint, options), step)


def _kept(spec: CompareSpec, manifest: Manifest, precision: str) -> dict[str, Any]:
    """Return the options of the published model that also apply to an export of `precision`."""
    now = settings.current(spec.repository, manifest, spec.device)
    kept: dict[str, Any] = {name: now[name] for name in ("slots", "max_batch_size") if name in now}
    runtime = manifest.choices.get("cpu_runtime")
    if isinstance(runtime, dict) and spec.device == "cpu":
        requested = runtime.get("requested", "auto")
        is_kept = requested == "onnxruntime" or (requested, precision) == ("native", "int8")
        kept["cpu_runtime"] = requested if is_kept else "auto"
    file = spec.repository / (spec.name + TOKENIZE_SUFFIX) / "1" / "settings.json"
    if file.is_file():
        kept["max_length"] = json.loads(file.read_text(encoding="utf-8"))["max_length"]
    return kept


def _runtime(manifest: Manifest) -> str:
    """Return the CPU runtime of a model, for a note."""
    choice = manifest.choices.get("cpu_runtime")
    math = " in bfloat16" if manifest.choices.get("cpu_math") == "bf16" else ""
    return f"{choice['runtime']}{math}" if isinstance(choice, dict) else ""
