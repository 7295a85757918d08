"""The kinds of comparison: devices, running servers, precisions, variants; how each one's values become candidates."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hfx.client import ModelMetadata
from hfx.errors import HfxError, UsageError
from hfx.local.models import published_metadata
from hfx.perf import measuring
from hfx.perf.compare.candidates import Candidate, CompareSpec, Session, parse_devices, parse_targets, running, served
from hfx.perf.compare.comparison import one_line
from hfx.perf.tuning import settings
from hfx.repository.catalog import model
from hfx.repository.edit import changed_copy, scratch
from hfx.repository.lint import check_rules

SHORT = {"max_batch": "max_batch_size"}
MAX_VARIANTS = 16
MADE_BY = "hfx perf compare --variants"
KINDS = ("devices", "target", "precisions", "variants")


def labels(spec: CompareSpec) -> list[str]:
    """The labels of the candidates, before anything is made for them. Raises UsageError for values that are none."""
    if spec.kind == "devices":
        return [*parse_devices(",".join(spec.values))]
    if spec.kind == "target":
        return [*parse_targets(spec.values, spec.name)]
    if spec.kind == "precisions":
        return [*parse_precisions(",".join(spec.values))]
    return [label_of(variant) for variant in parse_variants(spec.values)]


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
                yield variant_candidates(spec, parse_variants(spec.values), folder, notes)
            else:
                from hfx.perf.compare.precisions import precision_candidates  # imports the exporter

                yield precision_candidates(spec, labels(spec), folder, notes, session)


def parse_precisions(text: str) -> tuple[str, ...]:
    """The precisions, or names of published models, in "fp32,int8,other-model". Raises UsageError."""
    found = tuple(part.strip() for part in text.split(","))
    if len(set(found)) < len(found) or "" in found:
        raise UsageError(f"--precisions {text!r} can't be compared.", "Give some of fp32, fp16, int8, int4.")
    return found


def parse_variants(texts: Sequence[str]) -> list[dict[str, int]]:
    """Every combination of "max_queue_delay=0,500us" "instances=1,2" (or both in one text). Raises UsageError."""
    values: dict[str, list[int]] = {}
    name = ""
    for part in (part.strip() for text in texts for part in text.split(",")):
        if "=" in part:
            name, _, part = part.partition("=")
            name = SHORT.get(name.strip(), name.strip())
            if name in values:
                raise UsageError(f"--variants names {name} twice.", f"Write all its values at once: {name}=A,B.")
        if not name:
            raise UsageError(f"--variants {part!r} names no setting.", "Write it like instances=1,2.")
        values.setdefault(name, []).append(settings.parse(name, part))
    variants = [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]
    if not 2 <= len(variants) <= MAX_VARIANTS:
        raise UsageError(f"--variants makes {len(variants)} variants.", f"Give values for 2 to {MAX_VARIANTS}.")
    return variants


def variant_candidates(
    spec: CompareSpec, variants: Sequence[Mapping[str, int]], folder: Path, notes: list[str]
) -> list[Candidate]:
    """A candidate for each variant, its copy in `folder`; one that breaks a rule of repositories becomes a note.

    Raises UsageError for a setting that the model lacks.
    """
    manifest = model(spec.repository, spec.name)
    candidates = []
    for number, variant in enumerate(variants):
        edits = settings.edits(spec.repository, manifest, variant, spec.device)
        label, copy = label_of(variant), folder / f"variant{number}"
        try:
            changed_copy(spec.repository, spec.name, edits, copy, MADE_BY)
            check_rules(copy, manifest.triton.minimum, "Choose other values.")
        except HfxError as error:
            notes.append(f"{label} was not run: {one_line(error)}")
            continue
        candidates.append(served(label, copy, spec.name, spec.device, {**variant}))
    return candidates


def label_of(variant: Mapping[str, int]) -> str:
    """A variant in a table: instances=2, max_queue_delay=500us."""
    return ", ".join(f"{name}={value}{'us' * settings.named(name).is_time}" for name, value in variant.items())
