"""Trained checkpoints with outliers that int8 can't hold: in one product, or in every product."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests import zoo

TRAINED = "sentiment-distilbert"
OUTLIER, CHANNEL = 1e4, 5
PRODUCTS = 9  # of its two layers, and the first linear of its head


def one_bad_product(folder: Path, layer: int) -> str:
    """Save a checkpoint that answers as the trained one, with an outlier in what one product reads; return its name.

    A channel of the values is larger by OUTLIER, and the weights of the product that reads it are smaller by it.
    """
    model = _trained()
    attention = model.distilbert.transformer.layer[layer].attention
    attention.v_lin.weight.data[CHANNEL] *= OUTLIER
    attention.v_lin.bias.data[CHANNEL] *= OUTLIER
    attention.out_lin.weight.data[:, CHANNEL] /= OUTLIER
    _save(model, folder)
    return f"distilbert.transformer.layer.{layer}.attention.out_lin"


def only_bad_products(folder: Path) -> None:
    """Save a checkpoint in which each product has large weights for a channel that is always 0."""
    model = _trained()
    layers = model.distilbert.transformer.layer
    norms = [norm for layer in layers for norm in (layer.sa_layer_norm, layer.output_layer_norm)]
    for norm in (model.distilbert.embeddings.LayerNorm, *norms):
        norm.weight.data[CHANNEL] = norm.bias.data[CHANNEL] = 0
    for layer in layers:
        attention = layer.attention
        for linear in (attention.v_lin, layer.ffn.lin1):
            linear.weight.data[CHANNEL] = linear.bias.data[CHANNEL] = 0
        readers = (attention.q_lin, attention.k_lin, attention.v_lin, attention.out_lin, layer.ffn.lin1, layer.ffn.lin2)
        for linear in readers:
            linear.weight.data[:, CHANNEL] = OUTLIER
    model.pre_classifier.weight.data[:, CHANNEL] = OUTLIER
    _save(model, folder)


def _trained() -> Any:
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained(zoo.checkpoint(TRAINED))


def _save(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    for file in zoo.checkpoint(TRAINED).iterdir():
        if not (folder / file.name).exists():
            shutil.copy(file, folder)
