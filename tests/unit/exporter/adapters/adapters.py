"""Tiny backbones with random weights, and adapters that peft saves, with random factors instead of trained ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from hfx.exporter.source import Checkpoint, open_checkpoint

LABELS = 3
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
SHAPE = {"vocab_size": len(WORDS), "max_position_embeddings": 40}
WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
CONFIGS: dict[str, Callable[[], Any]] = {
    "distilbert": lambda: transformers.DistilBertConfig(dim=32, n_layers=2, n_heads=2, hidden_dim=48, **SHAPE),
    "bert": lambda: transformers.BertConfig(**WIDE, **SHAPE),
    "roberta": lambda: transformers.RobertaConfig(pad_token_id=0, **WIDE, **SHAPE),
}
SEQ_CLS = transformers.AutoModelForSequenceClassification


def save_backbone(folder: Path, family: str, model: Any = None) -> Checkpoint:
    """Save a bare `model` (by default one of `family` with random weights) with a tokenizer, and open it."""
    if model is None:
        torch.manual_seed(1)
        model = transformers.AutoModel.from_config(CONFIGS[family]())
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return open_checkpoint(str(folder))


def save_adapter(folder: Path, backbone: Checkpoint, auto: Any = SEQ_CLS, **fields: Any) -> PeftModel:
    """Save an adapter to `folder` as a training would, and return peft's model, whose factors are random."""
    torch.manual_seed(2)
    labels = {} if auto is transformers.AutoModel else {"num_labels": LABELS}
    model = auto.from_pretrained(backbone.view, **labels)
    adapted = get_peft_model(model, LoraConfig(**({"r": 4, "lora_alpha": 8} | fields))).eval()
    for name, parameter in adapted.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            parameter.data.normal_(std=0.1)
    adapted.save_pretrained(str(folder))
    return adapted


def edit_fields(folder: Path, **fields: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def edit_tensors(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    file = folder / "adapter_model.safetensors"
    save_file(change(load_file(file)), file)
