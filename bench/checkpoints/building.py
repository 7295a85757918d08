"""From a shape to a folder of files as the hub has them, made once and kept in the cache of hfx perf.

Owns the cache's key and the seed. It must not know what the checkpoints are used for.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.checkpoints import vocabulary
from bench.checkpoints.shapes import BY_NAME, Shape, smaller
from hfx.exporter.quiet import quiet_libraries
from hfx.perf.cache import made

LIBRARIES = ("torch", "transformers", "tokenizers")
# The tokenizer that a model class would otherwise be given is that of BERT or RoBERTa.
WRAPPERS = {
    "DistilBertForSequenceClassification": "DistilBertTokenizerFast",
    "BartForConditionalGeneration": "BartTokenizerFast",
}


def checkpoint(name: str, tiny: bool = False) -> Path:
    """The folder of the shape NAME, or of the same architecture small enough for a smoke run. KeyError: no such."""
    return cached(smaller(BY_NAME[name]) if tiny else BY_NAME[name])


def cached(shape: Shape) -> Path:
    """The folder of SHAPE, whose own name is the shape's; written at the first call."""
    return made(f"checkpoints/{_key(shape)}/{shape.name}", lambda folder: write(shape, folder))


def write(shape: Shape, folder: Path) -> None:
    """Write weights, configurations and tokenizer of SHAPE into FOLDER."""
    import torch
    import transformers

    tokenizer = vocabulary.tokenizer(shape.tokenizer, shape.config["vocab_size"], shape.max_tokens)
    config = getattr(transformers, shape.config_class)(**shape.config, **_special_ids(tokenizer), **_labels(shape))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(shape.seed)
        model = getattr(transformers, shape.model_class)(config).eval()
    if shape.generation:
        model.generation_config.update(**shape.generation)
    with quiet_libraries():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    if wrapper := WRAPPERS.get(shape.model_class):
        _rename_tokenizer(folder / "tokenizer_config.json", wrapper)


def _rename_tokenizer(path: Path, wrapper: str) -> None:
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["tokenizer_class"] = wrapper.removesuffix("Fast")
    path.write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _key(shape: Shape) -> str:
    parts = {
        "shape": asdict(shape),
        "sources": [Path(__file__).read_text(encoding="utf-8"), Path(vocabulary.__file__).read_text(encoding="utf-8")],
        "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
        "corpus": hashlib.sha256("\n".join(vocabulary.corpus()).encode()).hexdigest(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def _special_ids(tokenizer: Any) -> dict[str, int]:
    roles = ("pad_token_id", "bos_token_id", "eos_token_id")
    ids = {role: getattr(tokenizer, role) for role in roles if getattr(tokenizer, role) is not None}
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is not None:
        ids["decoder_start_token_id"] = tokenizer.pad_token_id  # T5 starts its answers with padding
    return ids


def _labels(shape: Shape) -> dict[str, Any]:
    if not shape.labels:
        return {}
    return {"id2label": dict(enumerate(shape.labels)), "label2id": {label: i for i, label in enumerate(shape.labels)}}
