"""transformers on torch, in float32 or bfloat16: the checkpoint as it is."""

from __future__ import annotations

from typing import Any

from bench.peers.classifying import Classifying
from bench.peers.decoding import Generating, model_class
from bench.peers.model import Model

TYPES = {"fp32": "float32", "bf16": "bfloat16"}


def open_net(model: Model, folder: str, fetched: str, precision: str, threads: int) -> Generating:
    """The generator in eval mode."""
    return Generating(_loaded(model_class(model), model, precision, threads), model)


def open_classifier(model: Model, folder: str, fetched: str, precision: str, threads: int) -> Classifying:
    """The classifier in eval mode."""
    return Classifying(_loaded("AutoModelForSequenceClassification", model, precision, threads), model)


def _loaded(name: str, model: Model, precision: str, threads: int) -> Any:
    import torch
    import transformers

    torch.set_num_threads(threads)
    kind = getattr(transformers, name)
    return kind.from_pretrained(model.files, dtype=getattr(torch, TYPES[precision])).eval()
