"""The kinds of comparison: devices, running servers, precisions, variants; how each one's values become candidates."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hfx.client import ModelMetadata
from hfx.client.address import parse_address
from hfx.errors import UsageError
from hfx.local.models import published_metadata
from hfx.perf import measuring
from hfx.perf.compare.candidates import PRECISIONS, Candidate, CompareSpec, Session, changed, running, served
from hfx.perf.server import Target
from hfx.perf.tuning import settings
from hfx.repository.catalog import model
from hfx.repository.edit import scratch
from hfx.triton.server import DEVICES

MAX_VARIANTS = 16
MADE_BY = "hfx perf compare --variants"
KINDS = ("devices", "target", "precisions", "variants")


def labels(spec: CompareSpec) -> list[str]:
    """The labels of the candidates, before anything is made for them. Raises UsageError for values that are none."""
    if spec.kind == "target":
        return [*parse_targets(spec.values, spec.name)]
    if spec.kind == "variants":
        return [label_of(variant) for variant in parse_variants(spec.values)]
    return parse_names(spec.kind, ",".join(spec.values))


def metadata(spec: CompareSpec) -> ModelMetadata:
    """What the model takes: as it is published, or of the first server."""
    if spec.kind != "target":
        return published_metadata(spec.repository, spec.name)
    return measuring.metadata(next(iter(parse_targets(spec.values, spec.name).values())))


@contextmanager
def candidates_of(spec: CompareSpec, session: Session, notes: list[str]) -> Iterator[list[Candidate]]:
    """The candidates, as long as the context lasts; `notes` gets a line for each that there can't be.

    Raises UsageError for values that can't be read, and ModelMissing.
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
                from hfx.perf.compare.precisions import precision_candidates  # imports the exporter

                yield precision_candidates(spec, labels(spec), folder, notes, session)


def parse_names(kind: str, text: str) -> list[str]:
    """The devices in "cpu,gpu", or the precisions and published models in "fp32,int8,other". Raises UsageError."""
    names, known = [part.strip() for part in text.split(",")], DEVICES if kind == "devices" else PRECISIONS
    if len(set(names)) < len(names) or "" in names or (kind == "devices" and not set(names) <= set(known)):
        raise UsageError(f"--{kind} {text!r} can't be compared.", f"Give some of {', '.join(known)}.")
    return names


def parse_targets(texts: Sequence[str], name: str) -> dict[str, Target]:
    """The model `name` on each server of texts such as "gpu=host:8001", by label.

    A label that is a device's name says what the server runs on. Raises UsageError.
    """
    targets: dict[str, Target] = {}
    for text in texts:
        label, _, url = (part.strip() for part in text.partition("="))
        if not label or not url:
            raise UsageError(f"--target {text!r} is no server.", "Give LABEL=HOST:PORT of its gRPC API.")
        if label in targets:
            raise UsageError(f"--target gives {label!r} twice.", "Give each server a label of its own.")
        if parse_address(url).protocol != "grpc":
            raise UsageError(f"{url} is an HTTP address.", "Give the gRPC port's as HOST:PORT.")
        targets[label] = Target(name, url, device=label if label in DEVICES else "")
    return targets


def parse_variants(texts: Sequence[str]) -> list[dict[str, int]]:
    """Every combination of "max_queue_delay=0,500us" "instances=1,2" (or both in one text). Raises UsageError."""
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
    """A variant in a table: instances=2, max_queue_delay=500us."""
    return ", ".join(f"{name}={value}{'us' * settings.named(name).is_time}" for name, value in variant.items())


def _variants(spec: CompareSpec, folder: Path) -> list[Candidate]:
    """A candidate for each variant. Raises UsageError for a setting that the model lacks."""
    manifest = model(spec.repository, spec.name)
    candidates = []
    for number, variant in enumerate(parse_variants(spec.values)):
        edits = settings.edits(spec.repository, manifest, variant, spec.device)
        label, copy = label_of(variant), folder / f"variant{number}"
        candidates.append(changed(label, spec.repository, spec.name, edits, copy, MADE_BY, spec.device, {**variant}))
    return candidates
