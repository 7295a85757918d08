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
TOKENIZER_CONFIG, GLINER_CONFIG = "tokenizer_config.json", "gliner_config.json"
LABELLED = "labelled"  # in a config of an encoder: what GLiNER's own configuration says beside it
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

# Model type of a checkpoint that transformers reads only in another copy -> this copy.
COPIES = {"xlm-roberta-flash": "jinaai/jina-embeddings-v3-hf"}
# Fields of GTE's own configuration ("new") -> the value that transformers' class (GteConfig) computes with.
GTE = {"position_embedding_type": "rope", "layer_norm_type": "layer_norm", "logn_attention_scale": False}


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


def read_config(folder: Path, base: Path | None = None) -> dict[str, Any]:
    """Return config.json as `as_native` does; the types of the fields that hfx depends on are checked.

    The folder `base` has the configuration of a GLiNER's encoder if its own lacks it. Raises CheckpointCorrupt,
    CheckpointUnsafe and CheckpointUnsupported.
    """
    file = folder / "config.json"
    if not file.is_file() and (folder / GLINER_CONFIG).is_file():
        file = folder / GLINER_CONFIG
    return checked_config(file, of_encoder(file, read_json(file), base))


def checked_config(file: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return `config`, which is in `file`, as `read_config` does."""
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
    return as_native(file, config)


def of_encoder(file: Path, config: dict[str, Any], base: Path | None = None) -> dict[str, Any]:
    """Return the encoder's configuration in that of GLiNER or GLiClass, with the other fields as LABELLED.

    If it has none, it is read from the folder `base`. Other configurations are returned as they are.

    Raises CheckpointUnsupported if it has none.
    """
    name = "GLiNER" if file.name == GLINER_CONFIG else str(config.get("model_type"))
    if name not in ("GLiNER", "GLiClass"):
        return config
    encoder, size = config.get("encoder_config"), config.get("vocab_size")
    if encoder is None and base:
        encoder = read_json(base / "config.json")
    if not isinstance(encoder, dict):
        raise CheckpointUnsupported(
            f"{file} has no encoder_config: the encoder's configuration is in another model.",
            f"Save it by its library: {name}.from_pretrained(MODEL).save_pretrained(FOLDER).",
        )
    own = {name: value for name, value in config.items() if name != "encoder_config"}
    sizes = {"vocab_size": size} if type(size) is int and size > 0 else {}
    return {"model_type": "deberta-v2"} | encoder | sizes | {"architectures": [name], LABELLED: own}


def as_native(file: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return `config`, the object in `file`, in the fields of transformers' own class.

    GTE and jina-embeddings-v3 were published with code of their own, which hfx never runs, and transformers has both
    since. GTE (`new`) scales its rotary positions by a fixed "ntk": base times factor, and frequencies divided by
    factor^(2 / head size), as vLLM's NTKScalingRotaryEmbedding does. Raises CheckpointUnsupported for a configuration
    that transformers' class does not compute.
    """
    model_type, stated = str(config.get("model_type")), config.get("rope_scaling")
    if model_type in COPIES:
        raise CheckpointUnsupported(
            f"{file} needs its own code (model_type {model_type!r}), which hfx never runs.",
            f"Pass a copy in transformers' own format: {COPIES[model_type]}.",
        )
    if model_type != "new" and not (model_type == "gte" and stated):
        return config
    scaling = {"type": "default", "factor": 1.0, "mixed_b": None} | (stated if isinstance(stated, dict) else {})
    base, factor = (_number(value) for value in (config.get("rope_theta", 10_000.0), scaling["factor"]))
    known = scaling["type"] in ("default", "ntk") and scaling["mixed_b"] is None
    scaled = known and factor and isinstance(stated, dict | None)
    faults = [field for field, value in GTE.items() if config.get(field, value) != value]
    faults += [field for field, valid in (("rope_theta", base), ("rope_scaling", scaled)) if not valid]
    if faults:
        raise CheckpointUnsupported(
            f"{faults[0]} in {file} is {str(config.get(faults[0]))[:50]}: transformers' GTE does not compute it.",
            "Export a model without it.",
        )
    heads = whole_number(file, config, "num_attention_heads", SIZES["num_attention_heads"])
    size = whole_number(file, config, "hidden_size", SIZES["hidden_size"]) / heads
    rotary = {"rope_type": "linear", "rope_theta": base * factor, "factor": factor ** (2 / size)}
    names = [name.replace("New", "Gte", 1) for name in config.get("architectures") or ()]
    kept = {field: value for field, value in config.items() if field not in ("auto_map", "rope_scaling", "rope_theta")}
    return kept | {"model_type": "gte", "architectures": names, "rope_parameters": rotary}


def _number(value: object) -> float:
    """Return `value` if it is a number from 1 to 1,000,000, otherwise 0."""
    return float(value) if type(value) in (int, float) and 1 <= value <= NO_LIMIT else 0.0  # type: ignore[operator, arg-type]


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
