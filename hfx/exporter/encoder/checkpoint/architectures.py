"""The encoder architectures that torch's tracer exports correctly, in one table.

Each was exported for every task that transformers has a class for, and compared with torch at batch sizes and lengths
other than the traced ones (tests/unit/exporter/test_encoders.py). Longformer and Funnel are left out: they compute
windows and pooled positions in Python, so their traces are wrong at other lengths, without an error. FNet needs an
operator (a Fourier transform) that the tracer lacks. XLNet and LUKE read more than a text's tokens.
"""

from __future__ import annotations

from hfx.errors import CheckpointUnsupported
from hfx.exporter.encoder.checkpoint.module_list import STATIC, is_static
from hfx.exporter.source import Checkpoint
from hfx.names import Task

# The position tables of these models begin after the padding id, so that 514 rows serve 512 tokens.
POSITIONS_AFTER_PADDING = {
    "camembert", "data2vec-text", "esm", "ibert", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta",
    "xlm-roberta-xl",
}  # fmt: skip
DECODERS = {"gemma3_text", "llama", "mistral", "qwen2", "qwen3"}
DECODERS_TASKS = {Task.FEATURE_EXTRACTION, Task.TEXT_CLASSIFICATION, Task.TEXT_RANKING}
TEXT_ENCODERS = {"mt5", "t5"}  # only the encoder of these models makes vectors (T5EncoderModel)
MPNET_PADDING = 1  # MPNet's positions begin after this id, whatever its config says
ENCODERS = POSITIONS_AFTER_PADDING | {
    "albert", "bart", "bert", "big_bird", "convbert", "deberta", "deberta-v2", "distilbert", "electra", "ernie",
    "eurobert", "flaubert", "layoutlm", "mbart", "megatron-bert", "mobilebert", "modernbert", "nomic_bert",
    "nystromformer", "rembert", "roformer", "squeezebert", "xlm",
}  # fmt: skip
# Model type -> a field of config.json, the value that it must have, and its default where it is missing. With another
# value, the trace would not compute what the model computes. BigBird's block-sparse attention begins at about 700
# tokens and attends to random blocks; I-BERT's integers are rounded from sums whose last bits differ.
REQUIRED: dict[str, tuple[str, object, object]] = {
    "big_bird": ("attention_type", "original_full", "block_sparse"),
    "ibert": ("quant_mode", False, False),
}


def check_encoder(checkpoint: Checkpoint, task: str) -> None:
    """Raise CheckpointUnsupported unless the tables above list the architecture and allow the configuration."""
    supported = ENCODERS | DECODERS if task in DECODERS_TASKS else ENCODERS
    if task == Task.FEATURE_EXTRACTION:
        supported = supported | ({STATIC} if is_static(checkpoint.folder) else TEXT_ENCODERS)
    if checkpoint.model_type not in supported:
        raise CheckpointUnsupported(
            f"{task} of {checkpoint.model_type!r} models can't be exported.",
            f"Supported architectures: {', '.join(sorted(supported))}.",
        )
    if checkpoint.model_type in REQUIRED:
        name, required, default = REQUIRED[checkpoint.model_type]
        stated = checkpoint.config.get(name, default)
        if stated != required:
            raise CheckpointUnsupported(
                f"{name} in {checkpoint.folder / 'config.json'} is {stated!r}, which can't be exported.",
                f"Set it to {required!r}, export, and compare answers to long texts with --verify-data.",
            )
