"""The families of generators that can be exported, one file each. A new family is a file and a line here."""

from __future__ import annotations

from pathlib import Path

from hfx.errors import CheckpointUnsupported
from hfx.exporter.families import bart, gpt2, t5
from hfx.exporter.families.engine_folder import EngineFacts, write_folder
from hfx.exporter.families.family import Family
from hfx.exporter.generation.tasks import DECODERS, ENCODER_DECODERS
from hfx.exporter.graph.formats import FORMATS, Formats
from hfx.exporter.source import Checkpoint

FAMILIES: tuple[Family, ...] = (gpt2.FAMILY, bart.FAMILY, t5.FAMILY)

__all__ = ["FAMILIES", "FORMATS", "EngineFacts", "Family", "Formats", "find_family", "write_engine_folder"]


def find_family(checkpoint: Checkpoint) -> Family:
    """The family of a checkpoint that generates text; CheckpointUnsupported names what is supported."""
    for family in FAMILIES:
        if checkpoint.model_type in family.model_types:
            if checkpoint.architecture not in ("", *family.architectures):
                generates = checkpoint.architecture.endswith((*DECODERS, *ENCODER_DECODERS))
                reason = "can't be exported" if generates else "generates no text"
                raise CheckpointUnsupported(
                    f"{checkpoint.architecture} ({checkpoint.folder / 'config.json'}) {reason}.",
                    f"Pass a checkpoint of one of {', '.join(family.architectures)}.",
                )
            return family
    raise CheckpointUnsupported(
        f"Text generation of {checkpoint.model_type!r} models can't be exported.",
        f"Supported architectures: {', '.join(sorted(name for family in FAMILIES for name in family.model_types))}.",
    )


def write_engine_folder(
    checkpoint: Checkpoint,
    folder: Path,
    formats: Formats,
    levels: int,
    openvino: bool = False,
    max_length: int | None = None,
) -> EngineFacts:
    """Write graphs, weights and engine.json of `checkpoint` into `folder`; see engine_folder.write_folder."""
    return write_folder(find_family(checkpoint), checkpoint, folder, formats, levels, openvino, max_length)
