"""One model under different settings: changed copies of what is published, each on a server of its own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from hfx.errors import HfxError, LintFailed, UsageError
from hfx.perf.compare.candidates import Candidate, CompareSpec, served
from hfx.perf.compare.comparison import one_line
from hfx.perf.tuning import settings
from hfx.repository.catalog import model
from hfx.repository.edit import changed_copy
from hfx.repository.lint import lint

SHORT = {"max_batch": "max_batch_size"}
MAX_VARIANTS = 16
MADE_BY = "hfx perf compare --variants"


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
            _check_rules(copy, manifest.triton.minimum)
        except HfxError as error:
            notes.append(f"{label} was not run: {one_line(error)}")
            continue
        candidates.append(served(label, copy, spec.name, spec.device, {**variant}))
    return candidates


def label_of(variant: Mapping[str, int]) -> str:
    """A variant in a table: instances=2, max_queue_delay=500us."""
    return ", ".join(f"{name}={value}{'us' * settings.named(name).is_time}" for name, value in variant.items())


def _check_rules(repository: Path, triton: str) -> None:
    errors = [finding for finding in lint(repository, triton) if finding.severity == "error"]
    if errors:
        raise LintFailed("; ".join(f"{each.rule} {each.message}" for each in errors[:3]), "Choose other values.")
