"""The files by which sentence-transformers say how token embeddings become a sentence's: read, and nothing assumed.

Without them a checkpoint is pooled by the mean, unnormalized. A module that hfx doesn't know is refused: leaving it
out would give other embeddings than the checkpoint's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported
from hfx.exporter.config_file import AGAIN, TOKENIZER_CONFIG, read_json, read_json_value, read_optional_json
from hfx.exporter.encoder.pooling import Mode, Pooling

MODULES = "modules.json"
LIBRARY_CONFIG = "config_sentence_transformers.json"
# Where the library looks for the transformer module's config, in its order.
TRANSFORMER_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
KNOWN_PIPELINES = (("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize"))
# By the fields that are true; from version 6 on, by the values of `pooling_mode`.
KNOWN_MODES: dict[str, Mode] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "mean": "mean",
    "cls": "cls",
    "max": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
}
TEXT_METHOD = ("forward", "last_hidden_state")


def read_pooling(folder: Path) -> Pooling:
    """Pooling and normalization of the checkpoint in `folder`.

    Raises CheckpointUnsupported for modules, poolings and texts prepared (prompts, lower case) as hfx doesn't.
    """
    if not (folder / MODULES).is_file():
        return Pooling("mean", normalize=False)
    modules = _modules(folder)
    kinds = tuple(kind for kind, _ in modules)
    if kinds not in KNOWN_PIPELINES:
        raise CheckpointUnsupported(
            f"{folder / MODULES} lists the modules {', '.join(kinds) or '(none)'}, which hfx can't export.",
            "Supported: Transformer, Pooling, and Normalize or not, in this order.",
        )
    _refuse_prepared_texts(folder)
    return Pooling(_mode(folder / modules[1][1] / "config.json"), normalize=kinds[-1] == "Normalize")


def read_max_length(folder: Path) -> int | None:
    """`max_seq_length` of the transformer module's config, which bounds what the model was trained to read."""
    length = _transformer_config(folder).get("max_seq_length")
    return length if isinstance(length, int) and length > 0 else None


def _transformer_config(folder: Path) -> dict[str, Any]:
    return next((read_json(folder / name) for name in TRANSFORMER_CONFIGS if (folder / name).is_file()), {})


def _refuse_prepared_texts(folder: Path) -> None:
    """What sentence-transformers do to a text before its tokenizer sees it, and another way through the model."""
    config = _transformer_config(folder)
    modalities = config.get("modality_config")
    text = modalities.get("text") if isinstance(modalities, dict) else None
    if isinstance(text, dict) and (text.get("method"), text.get("method_output_name")) != TEXT_METHOD:
        raise CheckpointUnsupported(
            f"The texts for {folder} go through {text.get('method')!r} of the model to "
            f"{text.get('method_output_name')!r} (modality_config).",
            f"hfx exports models of which {TEXT_METHOD[0]!r} gives {TEXT_METHOD[1]!r}.",
        )
    file = folder / LIBRARY_CONFIG
    if read_optional_json(file).get("default_prompt_name") is not None:
        raise CheckpointUnsupported(
            f"{file} puts a prompt before each text (default_prompt_name).",
            "Set it to null, export, and put the prompt before your texts yourself.",
        )
    lowers = read_optional_json(folder / TOKENIZER_CONFIG).get("do_lower_case") is True
    if config.get("do_lower_case") is True and not lowers:
        raise CheckpointUnsupported(
            f"The texts for {folder} are put into lower case before its tokenizer, which doesn't do so by itself.",
            "Set do_lower_case to false in its sentence_*_config.json, export, and lower your texts yourself.",
        )


def _modules(folder: Path) -> list[tuple[str, str]]:
    file = folder / MODULES
    try:
        entries = read_json_value(file)
        modules = [(str(entry["type"]).rsplit(".", 1)[-1], str(entry["path"])) for entry in entries]
        outside = [path for _, path in modules if not (folder / path).resolve().is_relative_to(folder.resolve())]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"{file} is no list of modules: {error!r}.", AGAIN) from error
    if outside:
        raise CheckpointUnsafe(f"{file} names {outside[0]!r}, outside the checkpoint.", "Use a checkpoint you trust.")
    return modules


def _mode(file: Path) -> Mode:
    config = read_json(file)
    chosen = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    stated = config.get("pooling_mode", [])
    chosen += map(str, stated if isinstance(stated, list) else [stated])
    if len(chosen) == 1 and chosen[0] in KNOWN_MODES:
        return KNOWN_MODES[chosen[0]]
    raise CheckpointUnsupported(
        f"{file} asks for the pooling {', '.join(chosen) or '(none)'}, which hfx can't export.",
        f"Supported: one of {', '.join(dict.fromkeys(KNOWN_MODES.values()))}.",
    )
