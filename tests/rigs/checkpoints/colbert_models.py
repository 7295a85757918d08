"""Small random ColBERT checkpoints, with the files that PyLate 1.6 and Stanford's library write."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.rigs.checkpoints import tiny_encoders
from tests.rigs.checkpoints.sentence_models import CASED_WORDS, TEXTS, Recipe, base
from tests.rigs.checkpoints.tiny_checkpoints import HIDDEN
from tests.zoo import tokenization

WIDTH = 24
WORDS = (*CASED_WORDS, "[unused0]", "[unused1]", *(mark for mark in string.punctuation if mark not in ".?"))
IDENTITY = "torch.nn.modules.linear.Identity"
METADATA = {
    "query_maxlen": 32,
    "doc_maxlen": 50,
    "query_token_id": "[unused0]",
    "doc_token_id": "[unused1]",
    "mask_punctuation": True,
    "attend_to_mask_tokens": False,
    "dim": WIDTH,
}
MARKERS = ("query_prefix", "document_prefix")
PYLATE: dict[str, Any] = {
    "model_type": "ColBERT",
    "prompts": {"query": "", "document": ""},
    "default_prompt_name": None,
    "similarity_fn_name": "MaxSim",
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 32,
    "document_length": 50,
    "attend_to_expansion_tokens": False,
    "skiplist_words": [*string.punctuation],
    "do_query_expansion": True,
}


def write_stanford(folder: Path, recipe: Recipe | None = None, width: int = WIDTH, **metadata: Any) -> Path:
    """Write a BERT with `linear.weight` beside it; fields of `metadata` that are None are left out."""
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(1)
    base(folder, recipe or Recipe((), words=WORDS))
    weights = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights | {"linear.weight": torch.randn(width, HIDDEN)}, folder / "model.safetensors", {"format": "pt"})
    change(folder / "config.json", architectures=["HF_ColBERT"])
    return _write(folder / "artifact.metadata", METADATA | metadata).parent


def write_pylate(
    folder: Path,
    recipe: Recipe | None = None,
    model_type: str = "",
    pieces: str = "bert",
    dense: Sequence[dict[str, Any]] = ({},),
    kind: str = "pylate.models.Dense.Dense",
    **config: Any,
) -> Path:
    """Write a transformer, `dense` layers of tokens and markers in the tokenizer, as PyLate does.

    Fields of `config` that are None are left out. The transformer is a BERT, or of a `model_type` with a trained
    tokenizer of a kind.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModel, AutoTokenizer

    torch.manual_seed(1)
    recipe = recipe or Recipe((), words=WORDS)
    if model_type:
        tokenization.train(pieces, [*TEXTS, *string.punctuation], 400, 64).save_pretrained(folder)
        tiny_encoders.build(model_type, "AutoModel", vocab_size=400, **recipe.config).save_pretrained(folder)
    else:
        base(folder, recipe)
    settings = {name: value for name, value in (PYLATE | config).items() if value is not None}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([*filter(None, (settings.get(name, PYLATE[name]) for name in MARKERS))])
    tokenizer.save_pretrained(folder)
    model = AutoModel.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(folder)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    inputs = HIDDEN
    for at, fields in enumerate(dense, 1):
        layer = {"in_features": inputs, "out_features": WIDTH, "bias": False, "activation_function": IDENTITY} | fields
        weights = {"linear.weight": torch.randn(layer["out_features"], inputs)}
        if layer["bias"]:
            weights["linear.bias"] = torch.randn(layer["out_features"])
        if layer.get("use_residual") and inputs != layer["out_features"]:
            weights["residual.weight"] = torch.randn(layer["out_features"], inputs)
        (folder / f"{at}_Dense").mkdir()
        save_file(weights, folder / f"{at}_Dense/model.safetensors", {"format": "pt"})
        _write(folder / f"{at}_Dense/config.json", layer)
        modules.append({"idx": at, "name": str(at), "path": f"{at}_Dense", "type": kind})
        inputs = layer["out_features"]
    (folder / "modules.json").write_text(json.dumps(modules))
    _write(folder / "sentence_bert_config.json", {"max_seq_length": 31, "do_lower_case": False} | recipe.transformer)
    return _write(folder / "config_sentence_transformers.json", settings).parent


def change(file: Path, **fields: Any) -> None:
    """Set fields of a JSON file; fields that are None are removed."""
    _write(file, json.loads(file.read_text()) | fields)


def _write(file: Path, fields: dict[str, Any]) -> Path:
    file.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))
    return file
