"""One checkpoint in several precisions: exported into a folder of the comparison, or models that are published already.

Owns what is exported and from where. A precision that fails the export's gate becomes a note, never a number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.errors import HfxError, UsageError
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import export
from hfx.exporter.plan import make_plan
from hfx.exporter.source import Checkpoint, open_checkpoint
from hfx.manifest import Manifest
from hfx.names import TOKENIZE_SUFFIX
from hfx.perf.compare.interleave import one_line
from hfx.perf.compare.published import precision_on
from hfx.perf.compare.side import Session, Side, served
from hfx.perf.tuning.settings import current
from hfx.repository.catalog import model

PRECISIONS = ("fp32", "fp16", "int8", "int4")
COMMAND = "hfx perf compare --precisions"


@dataclass(frozen=True)
class Source:
    """What is exported: the model that stands for all precisions, and its checkpoint where it is given.

    `steps` are those of the export (None: all of them, the gate included).
    """

    repository: Path
    name: str
    device: str = "cpu"
    checkpoint: str = ""
    max_drop: float | None = None
    steps: Iterable[Any] | None = None


def parse_precisions(text: str) -> tuple[str, ...]:
    """The precisions, or names of published models, in "fp32,int8,other-model". Raises UsageError."""
    found = tuple(part.strip() for part in text.split(","))
    if len(set(found)) < len(found) or "" in found:
        raise UsageError(f"--precisions {text!r} can't be compared.", f"Give some of {', '.join(PRECISIONS)}.")
    return found


def precision_sides(
    source: Source, wanted: Sequence[str], folder: Path, notes: list[str], session: Session
) -> list[Side]:
    """A side for each of WANTED: NAME as it is published where that is its precision, else an export into FOLDER.

    Raises ModelMissing, and SourceError and UsageError where the checkpoint of an export can't be had.
    """
    manifest = model(source.repository, source.name)
    needed = [each for each in wanted if each in PRECISIONS and each != precision_on(manifest, source.device)]
    checkpoint = source_checkpoint(manifest, source.checkpoint) if needed else None
    sides, runtimes = [], dict[str, str]()
    for each in wanted:
        if session.stop.is_set():
            break
        try:
            if each in needed and checkpoint:
                _export(source, manifest, checkpoint, each, folder / each, session)
                place = (folder / each, source.name)
            else:
                place = (source.repository, source.name if each in PRECISIONS else each)
            sides.append(served(each, *place, source.device))
            runtimes[each] = _runtime(model(*place))
        except HfxError as error:
            notes.append(f"{each} was not run: {one_line(error)}")
    if len(set(runtimes.values())) > 1:
        notes.append("The runtimes differ: " + ", ".join(f"{each} on {name}" for each, name in runtimes.items()) + ".")
    return sides


def source_checkpoint(manifest: Manifest, given: str = "") -> Checkpoint:
    """The checkpoint of a published model: GIVEN, or what its manifest names. Raises SourceError and UsageError."""
    if given:
        return open_checkpoint(given)
    if manifest.source.revision is None and not Path(manifest.source.id).is_dir():
        raise UsageError(
            f"{manifest.name} came of a folder {manifest.source.id!r}, which is not here.",
            "Say where its checkpoint is: --checkpoint FOLDER.",
        )
    return open_checkpoint(manifest.source.id, manifest.source.revision)


def _export(
    source: Source, manifest: Manifest, checkpoint: Checkpoint, precision: str, repository: Path, session: Session
) -> None:
    options = ExportOptions(
        name=source.name,
        task=str(manifest.task),
        precision=precision,
        device=source.device,  # type: ignore[arg-type]
        repository=repository,
        triton=manifest.triton.built_for,
        max_drop=source.max_drop,
        command=f"{COMMAND} {precision}",
        **_kept(source, manifest),
    )

    def step(title: str) -> AbstractContextManager[object]:
        return _saying(session, f"{precision}: {title}")

    export(make_plan(checkpoint, options), step, source.steps)


def _kept(source: Source, manifest: Manifest) -> dict[str, Any]:
    """What the published model was told and does not depend on the precision."""
    now = current(source.repository, manifest, source.device)
    kept: dict[str, Any] = {name: now[name] for name in ("slots", "max_batch_size") if name in now}
    runtime = manifest.choices.get("cpu_runtime")
    if isinstance(runtime, dict):
        kept["cpu_runtime"] = runtime.get("requested", "auto")
    settings = source.repository / (source.name + TOKENIZE_SUFFIX) / "1" / "settings.json"
    if settings.is_file():
        kept["max_length"] = json.loads(settings.read_text(encoding="utf-8"))["max_length"]
    return kept


def _runtime(manifest: Manifest) -> str:
    """What computes on the CPU."""
    choice = manifest.choices.get("cpu_runtime")
    return str(choice["runtime"]) if isinstance(choice, dict) else ""


@contextmanager
def _saying(session: Session, words: str) -> Iterator[None]:
    session.say(words)
    yield
