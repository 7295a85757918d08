"""The checkpoints that are measured, made by the tests' zoo: full-size with random weights, or small.

It must not know how they are exported.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

SHAPE = "distilbert-base"
VOCABULARY = 30_522  # of the published model


def full_size() -> Path:
    """The folder of the distilbert-base shape."""
    from tests import zoo

    return zoo.shape(SHAPE)


def small() -> Path:
    """The folder of the tests' small trained classifier (128 wide, 2 layers): the server's own work dominates."""
    from tests import zoo

    return zoo.checkpoint("sentiment-distilbert")


def tiny(folder: Path) -> Path:
    """The same architecture small enough for a smoke run."""
    from tests.zoo import shapes

    shape = shapes.BY_NAME[SHAPE]
    small = {**shape.config, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}
    target = folder / "tiny"
    target.mkdir()
    shapes.write(dataclasses.replace(shape, config=small), target)
    return target


def with_vocabulary(checkpoint: Path, texts: Sequence[str], folder: Path) -> Path:
    """A copy whose tokenizer was trained on `texts`: as few tokens a word as a published vocabulary gives.

    The zoo's own tokenizer knows 4,000 pieces of a small world, and cuts real text into three times as many.
    """
    from transformers import AutoTokenizer

    target = folder / checkpoint.name
    shutil.copytree(checkpoint, target)
    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint))
    tokenizer.train_new_from_iterator(iter(texts), VOCABULARY, show_progress=False).save_pretrained(target)
    config = json.loads((target / "config.json").read_text())
    if config["vocab_size"] < VOCABULARY:
        raise ValueError(f"{checkpoint.name} embeds {config['vocab_size']} tokens, fewer than {VOCABULARY}")
    return target
