"""The kinds of comparison: devices, running servers, precisions, variants; how each one's values become candidates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hfx.client import ModelMetadata
from hfx.errors import UsageError
from hfx.perf import measuring
from hfx.perf.compare import candidates
from hfx.perf.compare.candidates import Candidate, CompareSpec, Session, parse_devices, parse_targets, running, served
from hfx.perf.compare.variants import label_of, parse_variants, variant_candidates
from hfx.repository.edit import scratch

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
        return candidates.metadata(spec.repository, spec.name)
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
