"""The architectures of encoders that torch's tracer exports rightly, in one table.

Each was exported for every task that transformers has a class for, and compared with torch at batches and lengths other
than the traced ones (tests/unit/test_encoders.py). Left out because their traces are wrong at other lengths, without an
error: Longformer and Funnel, which compute windows and pooled positions in Python. FNet needs an operator (a Fourier
transform) that the tracer has not, XLNet and LUKE read more than a text's tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hfx.errors import CheckpointUnsupported
from hfx.exporter.source import Checkpoint


@dataclass(frozen=True)
class Encoder:
    """What has to be known of an architecture beside its name.

    `positions_after_padding`: its table of positions begins behind the padding id, so that 514 rows are 512 tokens.
    `required`: fields of config.json that must have this value; with another one a trace would not be the model.
    """

    positions_after_padding: bool = False
    required: Mapping[str, Any] = field(default_factory=dict)


AFTER_PADDING = Encoder(positions_after_padding=True)
# Block-sparse attention begins at about 700 tokens and attends to random blocks.
FULL_ATTENTION = Encoder(required={"attention_type": "original_full"})

ENCODERS: Mapping[str, Encoder] = {
    "albert": Encoder(),
    "bart": Encoder(),
    "bert": Encoder(),
    "big_bird": FULL_ATTENTION,
    "camembert": AFTER_PADDING,
    "convbert": Encoder(),
    "data2vec-text": AFTER_PADDING,
    "deberta": Encoder(),
    "deberta-v2": Encoder(),
    "distilbert": Encoder(),
    "electra": Encoder(),
    "ernie": Encoder(),
    "esm": AFTER_PADDING,
    "eurobert": Encoder(),
    "flaubert": Encoder(),
    "ibert": AFTER_PADDING,
    "layoutlm": Encoder(),
    "mbart": Encoder(),
    "megatron-bert": Encoder(),
    "mobilebert": Encoder(),
    "modernbert": Encoder(),
    "mpnet": AFTER_PADDING,
    "nomic_bert": Encoder(),
    "nystromformer": Encoder(),
    "rembert": Encoder(),
    "roberta": AFTER_PADDING,
    "roberta-prelayernorm": AFTER_PADDING,
    "roformer": Encoder(),
    "squeezebert": Encoder(),
    "xlm": Encoder(),
    "xlm-roberta": AFTER_PADDING,
    "xlm-roberta-xl": AFTER_PADDING,
}


def check_encoder(checkpoint: Checkpoint, task: str) -> None:
    """Raise CheckpointUnsupported unless `checkpoint` is of an architecture, and configured, as the table has it."""
    encoder = ENCODERS.get(checkpoint.model_type)
    if encoder is None:
        raise CheckpointUnsupported(
            f"{task} of {checkpoint.model_type!r} models can't be exported.",
            f"Supported architectures: {', '.join(sorted(ENCODERS))}.",
        )
    for name, wanted in encoder.required.items():
        if checkpoint.config.get(name) != wanted:
            raise CheckpointUnsupported(
                f"{name} in {checkpoint.folder / 'config.json'} is {checkpoint.config.get(name)!r}, which can't be "
                "exported.",
                f"Set it to {wanted!r}, export, and compare answers to long texts with --verify-data.",
            )
