"""The encoder architectures that torch's tracer exports correctly, and why the others are refused, in tables.

Each was exported for every task that transformers has a class for, and compared with torch at batch sizes and lengths
other than the traced ones (tests/unit/exporter/test_encoders.py). Every architecture for which transformers has a
classifier is in one of the tables.
"""

from __future__ import annotations

from hfx.errors import CheckpointUnsupported
from hfx.exporter.encoder.checkpoint.module_list import STATIC, is_static
from hfx.exporter.source import Checkpoint
from hfx.names import Task

# The position tables of these models begin after the padding id, so that 514 rows serve 512 tokens.
POSITIONS_AFTER_PADDING = {
    "camembert", "data2vec-text", "esm", "ibert", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta",
    "xlm-roberta-xl", "xmod",
}  # fmt: skip
DECODERS = {
    "arcee", "biogpt", "bloom", "ctrl", "doge", "exaone4", "falcon", "gemma", "gemma2", "gemma3_text", "gpt2",
    "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "granite", "hunyuan_v1_dense", "llama", "ministral", "ministral3",
    "mistral", "modernbert-decoder", "mpt", "nemotron", "olmo", "olmo2", "olmo3", "openai-gpt", "opt", "persimmon",
    "phi", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3", "stablelm", "starcoder2",
}  # fmt: skip
TEXT_ENCODERS = {"mt5", "t5", "umt5"}  # only the encoder of these models makes vectors (T5EncoderModel)
MPNET_PADDING = 1  # MPNet's positions begin after this id, whatever its config says
ENCODERS = POSITIONS_AFTER_PADDING | {
    "albert", "bart", "bert", "big_bird", "convbert", "deberta", "deberta-v2", "distilbert", "electra", "ernie",
    "esmc", "eurobert", "flaubert", "gte", "jina_embeddings_v3", "layoutlm", "mbart", "megatron-bert", "mobilebert",
    "modernbert", "mvp", "nomic_bert", "nystromformer", "plbart", "rembert", "roformer", "squeezebert", "ultrabert",
    "xlm",
}  # fmt: skip
# Why the other architectures that transformers has classifiers of are refused -> their model types, and what to
# fine-tune in their place. A trace would be wrong at other lengths, without an error, for the second to fourth reason.
REFUSED: dict[str, tuple[set[str], str]] = {
    "It reads more than the tokens of a text": (
        {
            "bros", "gemma3", "layoutlmv2", "layoutlmv3", "lilt", "luke", "lxmert", "markuplm", "modernvbert",
            "qwen3_5", "qwen3_asr", "roc_bert", "splinter", "tapas", "ultravbert", "xlnet",
        },
        "layoutlm or modernbert",
    ),
    "Its blocks, windows, hashes or pooled positions are computed in Python": (
        {
            "bigbird_pegasus", "canine", "funnel", "led", "longformer", "mra", "perceiver", "reformer", "yoso",
        },
        "modernbert or big_bird",
    ),
    "Its experts are chosen in Python": (
        {
            "axk1", "axk2", "deepseek_v2", "deepseek_v3", "gpt_oss", "hunyuan_v1_moe", "jetmoe", "minimax", "mistral4",
            "mixtral", "openai_privacy_filter", "phimoe", "qwen2_moe", "qwen3_moe",
        },
        "qwen3 or modernbert",
    ),
    "Its layers are recurrent": ({"jamba", "qwen3_5_text", "qwen3_next", "zamba", "zamba2"}, "qwen3 or modernbert"),
    "torch's tracer lacks one of its operators, or makes a wrong one": (
        {"apertus", "cohere_compass_text", "diffllama", "fnet", "glm", "glm4", "helium", "minicpm3"},
        "llama or modernbert",
    ),
    "Its encoder and decoder read the text in a way of their own": ({"t5gemma", "t5gemma2"}, "t5 or modernbert"),
}  # fmt: skip
# Model type -> a field of config.json, the value that it must have, and its default where it is missing. With another
# value, the trace would not compute what the model computes. BigBird's block-sparse attention begins at about 700
# tokens and attends to random blocks; I-BERT's integers are rounded from sums whose last bits differ.
REQUIRED: dict[str, tuple[str, object, object]] = {
    "big_bird": ("attention_type", "original_full", "block_sparse"),
    "ibert": ("quant_mode", False, False),
}


def supported_by(task: str) -> set[str]:
    """Return the model types of transformers that are exported for `task`."""
    return ENCODERS if task == Task.FILL_MASK else ENCODERS | DECODERS | TEXT_ENCODERS


def check_encoder(checkpoint: Checkpoint, task: str) -> None:
    """Raise CheckpointUnsupported unless the tables above list the architecture and allow the configuration."""
    supported = supported_by(task)
    if task == Task.FEATURE_EXTRACTION and is_static(checkpoint.folder):
        supported = supported | {STATIC}
    if checkpoint.model_type not in supported:
        raise _refusal(checkpoint.model_type, task, supported)
    if checkpoint.model_type in REQUIRED:
        name, required, default = REQUIRED[checkpoint.model_type]
        stated = checkpoint.config.get(name, default)
        if stated != required:
            raise CheckpointUnsupported(
                f"{name} in {checkpoint.folder / 'config.json'} is {stated!r}, which can't be exported.",
                f"Set it to {required!r}, export, and compare answers to long texts with --verify-data.",
            )


def _refusal(model_type: str, task: str, supported: set[str]) -> CheckpointUnsupported:
    message = f"{task} of {model_type!r} models can't be exported."
    for reason, (refused, nearest) in REFUSED.items():
        if model_type in refused:
            return CheckpointUnsupported(f"{message} {reason}.", f"Fine-tune {nearest}, or use transformers itself.")
    return CheckpointUnsupported(message, f"Supported architectures: {', '.join(sorted(supported))}.")
