"""Read the JSON files of a checkpoint, above all config.json, with checks against harm.

Files are bounded in size. A config is refused if transformers would do harm with it: it decides how much is built
before any weight is read, which file is loaded and which code runs.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported

MAX_BYTES = 16 * 1024 * 1024  # a config.json is a few KB; one of hundreds of MB is an attack or a mistake
TOKENIZER_CONFIG = "tokenizer_config.json"
AGAIN = "Download or save the checkpoint again."
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
NO_LIMIT = 1_000_000  # transformers writes 1e30 for a tokenizer without a limit
# These fields of config.json say that the first numbers of a vector are usable as a shorter vector.
MATRYOSHKA = ("matryoshka_dimensions", "is_matryoshka")
# The largest value of each field that sizes a model. Building a larger model would only exhaust time or memory.
SIZES = {
    **dict.fromkeys(("num_hidden_layers", "n_layers", "encoder_layers", "decoder_layers"), 1_000),
    **dict.fromkeys(("num_attention_heads", "n_heads"), 10_000),
    **dict.fromkeys(("hidden_size", "dim", "d_model", "num_labels"), 1_000_000),
    "intermediate_size": 10_000_000,
    **dict.fromkeys(("max_position_embeddings", "vocab_size"), 100_000_000),
}


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a small JSON file of a checkpoint. Raises CheckpointCorrupt."""
    value = read_json_value(file)
    if not isinstance(value, dict):
        raise CheckpointCorrupt(f"{file} is not a JSON object.", AGAIN)
    return value


def read_optional_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file that a checkpoint need not have; empty without the file."""
    return read_json(file) if file.is_file() else {}


def read_json_value(file: Path) -> Any:
    """Return the value in a small JSON file of a checkpoint. Raises CheckpointCorrupt."""
    try:
        return json.loads(read_bytes(file, MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise CheckpointCorrupt(f"{file} is not JSON: {error}.", AGAIN) from error


def read_bytes(file: Path, most: int) -> bytes:
    """Return the contents of a file of at most `most` bytes. Raises CheckpointCorrupt.

    A pipe or device is refused without blocking.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise _missing(file) from error
    except OSError as error:
        raise CheckpointCorrupt(f"{file} can't be read: {error.strerror}.", "Check its permissions.") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _missing(file)
        if status.st_size > most:
            raise CheckpointCorrupt(f"{file} is over {most >> 20} MB.", "It can't be the file of a checkpoint.")
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read(most)
    finally:
        os.close(descriptor)


def _missing(file: Path) -> CheckpointCorrupt:
    return CheckpointCorrupt(f"{file.parent} has no file {file.name}.", "Pass a folder written by save_pretrained.")


def whole_number(file: Path, config: Mapping[str, Any], field: str, most: int, least: int = 1) -> int:
    """Return the number in a `field` of `config`, the object in `file`. Raises CheckpointCorrupt."""
    value = config.get(field)
    if type(value) is not int or not least <= value <= most:
        raise CheckpointCorrupt(
            f"{field} in {file} is {str(value)[:50]!r}; it should be a whole number from {least} to {most}.", AGAIN
        )
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json; the types of the fields that hfx depends on are checked.

    Raises CheckpointCorrupt, CheckpointUnsafe and CheckpointUnsupported.
    """
    file = folder / "config.json"
    config = read_json(file)
    if not isinstance(config.get("model_type"), str):
        if "auto_map" in config:
            raise CheckpointUnsafe(
                f"{file} needs its own code (auto_map).",
                "hfx runs no remote code: use a model that transformers has.",
            )
        raise CheckpointCorrupt(f"{file} has no model_type.", "Save the model again with save_pretrained.")
    architectures = config.get("architectures")
    if architectures is not None and not (
        isinstance(architectures, list) and all(isinstance(name, str) for name in architectures)
    ):
        raise CheckpointCorrupt(f"architectures in {file} is not a list of names.", "Save the model again.")
    _refuse_detours(file, config)
    _check_sizes(file, config)
    _check_labels(file, config)
    return config


def tokenizer_limit(folder: Path) -> int | None:
    """Return the tokens that a text may have according to the tokenizer (model_max_length); None without a limit."""
    stated = read_optional_json(folder / TOKENIZER_CONFIG).get("model_max_length")
    return int(stated) if isinstance(stated, int | float) and 0 < stated < NO_LIMIT else None


def _refuse_detours(file: Path, config: dict[str, Any]) -> None:
    """Refuse fields that make transformers load another file, foreign kernels, or weights that aren't floats."""
    if config.get("transformers_weights") is not None:
        raise CheckpointUnsafe(
            f"{file} names its own weight file (transformers_weights).", "Save the model again with save_pretrained."
        )
    if config.get("configuration_files") is not None:
        raise CheckpointUnsafe(
            f"{file} names other files to be read in its place (configuration_files).", "Remove the field from it."
        )
    for field in ("_attn_implementation", "_attn_implementation_internal", "attn_implementation"):
        if "/" in str(config.get(field)):
            raise CheckpointUnsafe(
                f"{file} wants kernels from the hub ({field}: {config[field]!r}).", f"Remove {field} from it."
            )
    if config.get("quantization_config") is not None:
        raise CheckpointUnsupported(
            f"{file} has a quantization_config: these weights are quantized already.",
            "Pass the float checkpoint; hfx quantizes by itself (--quantize).",
        )


def _check_sizes(file: Path, config: dict[str, Any]) -> None:
    for field, largest in SIZES.items():
        value = config.get(field)
        if value is None or isinstance(value, list | dict):
            continue  # transformers' default, or a kind of model that uses lists here
        whole_number(file, config, field, largest)


def _check_labels(file: Path, config: dict[str, Any]) -> None:
    """Refuse labels that are not numbered 0, 1, 2 without a gap, as names are looked up by the index of a logit.

    transformers 5 accepts anything.
    """
    labels = config.get("id2label")
    numbered = isinstance(labels, dict) and labels and {str(key) for key in labels} == set(map(str, range(len(labels))))
    if labels is not None and not numbered:
        raise CheckpointCorrupt(
            f"id2label in {file} doesn't name the labels 0, 1, 2, ...", "Number its keys from 0, without gaps."
        )
    numbers = config.get("label2id")
    if numbers is not None and not (
        isinstance(numbers, dict) and all(type(number) is int for number in numbers.values())
    ):
        raise CheckpointCorrupt(f"label2id in {file} gives no number for each label.", "Correct or remove it.")
    problem = config.get("problem_type")
    if problem is not None and problem not in PROBLEM_TYPES:
        raise CheckpointCorrupt(
            f"problem_type in {file} is {str(problem)[:50]!r}.", f"It should be one of {', '.join(PROBLEM_TYPES)}."
        )
