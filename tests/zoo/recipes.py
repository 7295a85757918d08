"""The closed table of small trained checkpoints. A name says what the checkpoint is: its task, its architecture."""

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


RECIPES: tuple[Recipe, ...] = (
    Recipe("sentiment-distilbert", task="sentiment", architecture="distilbert", vocab_size=1000, steps=300),
    Recipe(
        "nli-bart", task="nli", architecture="bart", vocab_size=1600, train_examples=16000, warm_up_steps=500, steps=420
    ),
    Recipe("entities-bert", task="entities", architecture="bert-cased", vocab_size=1000, steps=250),
    Recipe(
        "labelled-spans-deberta", task="labelled-entities", architecture="deberta-v3", vocab_size=1000, max_tokens=256,
        warm_up_steps=500, steps=200, batch_size=32, learning_rate=1.5e-3, smoothing=0.002,
    ),
    Recipe(
        "labelled-topics-deberta", task="labelled-topics", architecture="deberta-v3", vocab_size=1200, max_tokens=256,
        warm_up_steps=700, steps=200, batch_size=32, smoothing=0.02,
    ),
    Recipe("answers-bert", task="answers", architecture="bert", layers=3, batch_size=16, warm_up_steps=400, steps=800),
    Recipe("similar-mpnet", task="similarity", architecture="mpnet", steps=300),
    Recipe("topics-roberta", task="topics", architecture="roberta", vocab_size=1200, steps=300),
    Recipe("sentiment-bert", task="sentiment", architecture="bert", vocab_size=1000, steps=250),
    Recipe("sentiment-electra", task="sentiment", architecture="electra", vocab_size=1000, steps=250),
    Recipe("sentiment-albert", task="sentiment", architecture="albert", vocab_size=1000, steps=250),
    Recipe("sentiment-deberta", task="sentiment", architecture="deberta-v3", vocab_size=1000, steps=250),
    Recipe("sentiment-xlm-roberta", task="sentiment", architecture="xlm-roberta", vocab_size=1000, steps=250),
    Recipe(
        "stories-gpt2", task="stories", architecture="gpt2", vocab_size=700, max_tokens=512, train_examples=16000,
        warm_up_steps=120, steps=600, batch_size=16, learning_rate=2e-3,
    ),
    Recipe(
        "summaries-bart", task="summaries", architecture="bart", max_tokens=512, train_examples=16000, steps=450,
        batch_size=16,
    ),
    Recipe(
        "summaries-t5", task="short-summaries", architecture="flan-t5", heads=8, max_tokens=512, train_examples=16000,
        steps=2700, batch_size=8,
    ),
    Recipe(
        "summaries-t5-tied", task="short-summaries", architecture="t5", heads=8, max_tokens=512, train_examples=16000,
        steps=1800, batch_size=8,
    ),
)  # fmt: skip

BY_NAME = {recipe.name: recipe for recipe in RECIPES}

# What `make test-full` alone needs, and everything else; the longest trainings first.
FULL_ONLY = (
    "summaries-t5-tied", "sentiment-albert", "sentiment-bert", "sentiment-deberta", "sentiment-electra",
    "sentiment-xlm-roberta",
)  # fmt: skip
SHARED = tuple(r.name for r in sorted(RECIPES, key=lambda recipe: -recipe.steps) if r.name not in FULL_ONLY)
