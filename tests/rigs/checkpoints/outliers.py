"""Trained checkpoints with outliers that int8 can't hold: in one product, or in every product."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests import zoo

TRAINED, GENERATOR = "sentiment-distilbert", "stories-gpt2"
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


def one_bad_linear(folder: Path, layer: int) -> str:
    """Save a generator as `one_bad_product` saves a classifier."""
    model = _generator()
    attention = model.transformer.h[layer].attn
    value = 2 * model.config.hidden_size + CHANNEL
    attention.c_attn.weight.data[:, value] *= OUTLIER
    attention.c_attn.bias.data[value] *= OUTLIER
    attention.c_proj.weight.data[CHANNEL] /= OUTLIER
    _save(model, folder, GENERATOR)
    return f"transformer.h.{layer}.attn.c_proj"


def only_bad_linears(folder: Path) -> int:
    """Save a generator as `only_bad_products` saves a classifier; return the number of its linears."""
    model = _generator()
    value = 2 * model.config.hidden_size + CHANNEL
    for layer in model.transformer.h:
        for norm in (layer.ln_1, layer.ln_2):
            norm.weight.data[CHANNEL] = norm.bias.data[CHANNEL] = 0
        for linear, column in ((layer.attn.c_attn, value), (layer.mlp.c_fc, CHANNEL)):
            linear.weight.data[:, column] = linear.bias.data[column] = 0
        for linear in (layer.attn.c_attn, layer.attn.c_proj, layer.mlp.c_fc, layer.mlp.c_proj):
            linear.weight.data[CHANNEL] = OUTLIER
    _save(model, folder, GENERATOR)
    return 4 * len(model.transformer.h)


def _trained() -> Any:
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained(zoo.checkpoint(TRAINED))


def _generator() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(zoo.checkpoint(GENERATOR))


def _save(model: Any, folder: Path, trained: str = TRAINED) -> None:
    model.save_pretrained(folder)
    for file in zoo.checkpoint(trained).iterdir():
        if not (folder / file.name).exists():
            shutil.copy(file, folder)
