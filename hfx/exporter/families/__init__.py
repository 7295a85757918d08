"""The families of generators that can be exported, one file each. A new family is a file and a line here.

If graph/blocks.py has no block for a part of the net (experts, capped scores), the new family needs that block first,
and a writer for it in exporter/graph. If its KV cache differs, it also needs a field in python_backends/engine/spec.py.
"""

from __future__ import annotations

from hfx.errors import CheckpointUnsupported
from hfx.exporter.families import bart, gpt2, gpt_neox, llama, opt, t5
from hfx.exporter.families.family import Family
from hfx.exporter.generation.tasks import DECODERS, ENCODER_DECODERS
from hfx.exporter.source import Checkpoint

FAMILIES: tuple[Family, ...] = (
    gpt2.FAMILY,
    gpt_neox.FAMILY,
    opt.FAMILY,
    llama.FAMILY,
    bart.FAMILY,
    t5.FAMILY,
)


def find_family(checkpoint: Checkpoint) -> Family:
    """Return the family of a checkpoint. Raises CheckpointUnsupported, which names the supported checkpoints."""
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
