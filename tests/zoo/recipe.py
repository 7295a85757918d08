"""A recipe: everything that decides what a small trained checkpoint is, as one frozen value.

Owns the fields and their meaning; the table of recipes is in `recipes.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """A small checkpoint of a real architecture, and how it is trained.

    `max_tokens` becomes the tokenizer's model_max_length. `warm_up_steps` come before the `steps`, with a loss of
    their own. `smoothing` is label smoothing: it keeps the logits decisive without saturating them. `floor` is the
    least held-out metric with which the checkpoint may be published.
    """

    name: str
    task: str
    architecture: str
    vocab_size: int = 800
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    feed_forward: int = 256
    max_tokens: int = 128
    train_examples: int = 8000
    warm_up_steps: int = 0
    steps: int = 400
    batch_size: int = 64
    learning_rate: float = 1e-3
    smoothing: float = 0.05
    heldout_examples: int = 600
    floor: float = 0.9
    seed: int = 20240610
