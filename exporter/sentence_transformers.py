"""The files by which sentence-transformers say how token embeddings become a sentence's: read, and nothing assumed.

Without them a checkpoint is pooled by the mean, unnormalized. A module that hfx doesn't know is refused: leaving it
out would give other embeddings than the checkpoint's.
"""

from __future__ import annotations

import json
from pathlib import Path

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported
from hfx.exporter.config_file import AGAIN, read_json
from hfx.exporter.graph.pooling import Mode, Pooling

MODULES = "modules.json"
KNOWN_MODES: dict[str, Mode] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
}


def read_pooling(folder: Path) -> Pooling:
    """Pooling and normalization of the checkpoint in `folder`."""
    if not (folder / MODULES).is_file():
        return Pooling("mean", normalize=False)
    mode: Mode = "mean"
    normalize = False
    for kind, path in _modules(folder):
        if kind == "Pooling":
            mode = _mode(folder / path / "config.json")
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise CheckpointUnsupported(
                f"{folder / MODULES} has a module {kind!r}, which hfx can't export.",
                "Supported modules: Transformer, Pooling, Normalize.",
            )
    return Pooling(mode, normalize)


def read_max_length(folder: Path) -> int | None:
    """`max_seq_length` of sentence_bert_config.json, which bounds what the model was trained to read."""
    file = folder / "sentence_bert_config.json"
    length = read_json(file).get("max_seq_length") if file.is_file() else None
    return length if isinstance(length, int) and length > 0 else None


def _modules(folder: Path) -> list[tuple[str, str]]:
    file = folder / MODULES
    try:
        entries = json.loads(file.read_bytes())
        modules = [(str(entry["type"]).rsplit(".", 1)[-1], str(entry["path"])) for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"{file} is no list of modules: {error!r}.", AGAIN) from error
    for _, path in modules:
        if not (folder / path).resolve().is_relative_to(folder.resolve()):
            raise CheckpointUnsafe(f"{file} names {path!r}, outside the checkpoint.", "Use a checkpoint you trust.")
    return modules


def _mode(file: Path) -> Mode:
    config = read_json(file)
    chosen = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if len(chosen) == 1 and chosen[0] in KNOWN_MODES and config.get("include_prompt", True):
        return KNOWN_MODES[chosen[0]]
    raise CheckpointUnsupported(
        f"{file} asks for the pooling {', '.join(chosen) or '(none)'}, which hfx can't export.",
        f"Supported: one of {', '.join(KNOWN_MODES)}.",
    )
