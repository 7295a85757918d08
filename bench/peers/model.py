"""What a peer must know of a checkpoint: its files, its architecture, and how hfx would read texts for it.

Reads small JSON files only. It must not know which peers there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.errors import PeerFailed
from hfx.errors import HfxError
from hfx.names import GENERATION_TASKS, Task

Kind = Literal["decoder", "encoder-decoder", "classifier"]


@dataclass(frozen=True)
class Model:
    """A checkpoint: its folder and, for libraries to load, the private view of that, which has no code.

    `start` is the token that its decoder starts with, None where it has no encoder beside it.
    """

    name: str
    checkpoint: str
    files: str
    family: str
    start: int | None
    vocabulary: int


@dataclass(frozen=True)
class Reading:
    """How texts become prompts, as the published model does it.

    `prefix` goes before each text. `longest` are the tokens that are read at most; of a decoder, the new ones take
    their part of them.
    """

    task: str
    kind: Kind
    prefix: str
    longest: int


def read(checkpoint: Path, task: str) -> tuple[Model, Reading]:
    """Both. Raises PeerFailed for a checkpoint or task that hfx could not serve itself."""
    from hfx.exporter.source import open_checkpoint

    try:
        opened = open_checkpoint(str(checkpoint))
        reading = _generator(opened, task) if task in GENERATION_TASKS else _classifier(opened, task)
    except PeerFailed:
        raise
    except HfxError as error:
        raise PeerFailed(error.message) from error
    config = opened.config
    start = config.get("decoder_start_token_id", 0) if reading.kind == "encoder-decoder" else None
    vocabulary = int(config.get("vocab_size") or 0)
    model = Model(opened.folder.name, str(opened.folder), str(opened.view), opened.model_type, start, vocabulary)
    return model, reading


def _generator(checkpoint: object, task: str) -> Reading:
    from hfx.exporter.families import find_family
    from hfx.exporter.generation.plan import longest_texts
    from hfx.exporter.generation.settings import read_settings
    from hfx.exporter.generation.tasks import choose_task

    kind = find_family(checkpoint).kind  # type: ignore[arg-type]
    chosen = choose_task(checkpoint, kind, task)  # type: ignore[arg-type]
    positions, source = longest_texts(checkpoint, kind)  # type: ignore[arg-type]
    settings = read_settings(checkpoint, chosen, positions)  # type: ignore[arg-type]
    return Reading(task, kind, settings.prefix, positions if source is None else source)


def _classifier(checkpoint: object, task: str) -> Reading:
    from hfx.exporter.encoder.plan import longest_input
    from hfx.exporter.tasks import find_task

    if task != Task.TEXT_CLASSIFICATION:
        raise PeerFailed(f"peers answer {Task.TEXT_CLASSIFICATION} and generation, not {task}")
    return Reading(task, "classifier", "", longest_input(checkpoint, find_task(task)))  # type: ignore[arg-type]
