"""One checkpoint in several precisions: exported into a folder of the comparison, or models that are published already.

A precision that fails the export's gate becomes a note, never a number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from hfx.errors import HfxError, UsageError
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import export
from hfx.exporter.plan import make_plan
from hfx.exporter.source import Checkpoint, open_checkpoint
from hfx.manifest import Manifest
from hfx.names import TOKENIZE_SUFFIX
from hfx.perf.compare.candidates import PRECISIONS, Candidate, CompareSpec, Session, one_line, precision_on, served
from hfx.perf.tuning.settings import current
from hfx.repository.catalog import model

COMMAND = "hfx perf compare --precisions"


def precision_candidates(
    spec: CompareSpec, precisions: Sequence[str], folder: Path, notes: list[str], session: Session
) -> list[Candidate]:
    """A candidate for each of `precisions`: the model as it is published where that is its precision, else an export.

    Raises ModelMissing, and SourceError and UsageError where the checkpoint of an export can't be had.
    """
    manifest = model(spec.repository, spec.name)
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
            notes.append(f"{each} was not run: {one_line(error)}")
    if len(set(runtimes.values())) > 1:
        notes.append("The runtimes differ: " + ", ".join(f"{each} on {name}" for each, name in runtimes.items()) + ".")
    return candidates


def _checkpoint(manifest: Manifest, given: str) -> Checkpoint:
    """The checkpoint of a published model: `given`, or what its manifest names."""
    if given:
        return open_checkpoint(given)
    if manifest.source.revision is None and not Path(manifest.source.id).is_dir():
        raise UsageError(
            f"{manifest.name} came of a folder {manifest.source.id!r}, which is not here.",
            "Say where its checkpoint is: --checkpoint FOLDER.",
        )
    return open_checkpoint(manifest.source.id, manifest.source.revision)


def _export(
    spec: CompareSpec, manifest: Manifest, checkpoint: Checkpoint, precision: str, repository: Path, session: Session
) -> None:
    options = ExportOptions(
        name=spec.name,
        task=str(manifest.task),
        precision=precision,
        device=spec.device,  # type: ignore[arg-type]
        repository=repository,
        triton=manifest.triton.built_for,
        max_drop=spec.max_drop,
        command=f"{COMMAND} {precision}",
        **_kept(spec, manifest, precision),
    )

    def step(title: str) -> AbstractContextManager[object]:
        session.say(f"{precision}: {title}")
        return nullcontext()

    export(make_plan(checkpoint, options), step)


def _kept(spec: CompareSpec, manifest: Manifest, precision: str) -> dict[str, Any]:
    """The options of the published model that `precision` can take, too."""
    now = current(spec.repository, manifest, spec.device)
    kept: dict[str, Any] = {name: now[name] for name in ("slots", "max_batch_size") if name in now}
    runtime = manifest.choices.get("cpu_runtime")
    if isinstance(runtime, dict) and spec.device == "cpu":
        requested = runtime.get("requested", "auto")
        kept["cpu_runtime"] = "auto" if requested == "native" and precision != "int8" else requested
    settings = spec.repository / (spec.name + TOKENIZE_SUFFIX) / "1" / "settings.json"
    if settings.is_file():
        kept["max_length"] = json.loads(settings.read_text(encoding="utf-8"))["max_length"]
    return kept


def _runtime(manifest: Manifest) -> str:
    """What computes on the CPU."""
    choice = manifest.choices.get("cpu_runtime")
    math = " in bfloat16" if manifest.choices.get("cpu_math") == "bf16" else ""
    return f"{choice['runtime']}{math}" if isinstance(choice, dict) else ""
