"""The files by which sentence-transformers say how token embeddings become a sentence's, and logits a pair's score.

Without them a checkpoint is pooled by the mean, unnormalized, and a score is the sigmoid of its logit. A module that
hfx doesn't know is refused: leaving it out would give other answers than the checkpoint's.
"""

from __future__ import annotations

from collections.abc import Mapping
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
SCORE_METHOD = ("forward", "logits")
CROSS_ENCODER = "CrossEncoder"
CROSS_ENCODER_FIELD = "sbert_ce_default_activation_function"  # of config.json, before version 4
# The last part of an activation's path -> its name in settings.json.
KNOWN_ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "none"}


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
    _refuse_prepared_texts(folder, TEXT_METHOD)
    return Pooling(_mode(folder / modules[1][1] / "config.json"), normalize=kinds[-1] == "Normalize")


def read_max_length(folder: Path) -> int | None:
    """`max_seq_length` of the transformer module's config, which bounds what the model was trained to read."""
    length = _transformer_config(folder).get("max_seq_length")
    return length if isinstance(length, int) and length > 0 else None


def is_cross_encoder(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint in `folder`, with this config.json, was saved by sentence-transformers' CrossEncoder."""
    library = read_optional_json(folder / LIBRARY_CONFIG)
    return library.get("model_type") == CROSS_ENCODER or _activation_path(folder, config) is not None


def read_activation(folder: Path, config: Mapping[str, Any]) -> str:
    """The activation (sigmoid, none) that CrossEncoder.predict (5.7) applies to the logit of a pair.

    Raises CheckpointUnsupported for another one, and for modules and texts prepared as hfx doesn't.
    """
    kinds = [kind for kind, _ in _modules(folder)] if (folder / MODULES).is_file() else ["Transformer"]
    if kinds != ["Transformer"]:
        raise CheckpointUnsupported(
            f"{folder / MODULES} lists the modules {', '.join(kinds) or '(none)'}, which hfx can't export.",
            "A cross-encoder has the module Transformer alone.",
        )
    _refuse_prepared_texts(folder, SCORE_METHOD)
    path = _activation_path(folder, config) or "Sigmoid"
    if path.rsplit(".", 1)[-1] not in KNOWN_ACTIVATIONS:
        raise CheckpointUnsupported(
            f"The scores of {folder} go through {path!r}, which hfx can't export.",
            f"Supported activations: {', '.join(KNOWN_ACTIVATIONS)} of torch.nn.",
        )
    return KNOWN_ACTIVATIONS[path.rsplit(".", 1)[-1]]


def _activation_path(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The dotted path of an activation, from the places where CrossEncoder looks for it, in its order."""
    own = config.get("sentence_transformers")
    places = (
        read_optional_json(folder / LIBRARY_CONFIG).get("activation_fn"),
        own.get("activation_fn") if isinstance(own, dict) else None,
        config.get(CROSS_ENCODER_FIELD),
    )
    return next((str(path) for path in places if path is not None), None)


def _transformer_config(folder: Path) -> dict[str, Any]:
    return next((read_json(folder / name) for name in TRANSFORMER_CONFIGS if (folder / name).is_file()), {})


def _refuse_prepared_texts(folder: Path, method: tuple[str, str]) -> None:
    """What sentence-transformers do to a text before its tokenizer sees it, and another way through the model."""
    config = _transformer_config(folder)
    modalities = config.get("modality_config")
    text = modalities.get("text") if isinstance(modalities, dict) else None
    if isinstance(text, dict) and (text.get("method"), text.get("method_output_name")) != method:
        raise CheckpointUnsupported(
            f"The texts for {folder} go through {text.get('method')!r} of the model to "
            f"{text.get('method_output_name')!r} (modality_config).",
            f"hfx exports models of which {method[0]!r} gives {method[1]!r}.",
        )
    if changed := config.get("processing_kwargs"):
        raise CheckpointUnsupported(
            f"The texts for {folder} have tokenizer settings of their own (processing_kwargs): {str(changed)[:80]}.",
            "Set them in tokenizer_config.json, remove processing_kwargs from its sentence_*_config.json, and export.",
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
