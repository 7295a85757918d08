"""Small trained checkpoints of real architectures, made on the spot from a small world of sentences.

`checkpoint(name)` gives the folder of a trained checkpoint and builds it when it is absent; `shape(name)` the same
for a full-size one with random weights; `heldout(task)` the labelled data that no training saw. Importing this loads
no torch.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal, overload

from tests.zoo import cache, recipes, shapes
from tests.zoo.errors import TrainingMissed
from tests.zoo.examples import (
    AnswersExample,
    EntitiesExample,
    Entity,
    NliExample,
    SentimentExample,
    SimilarExample,
    StoryExample,
    TopicsExample,
)
from tests.zoo.recipe import Recipe
from tests.zoo.tasks import TASKS

__all__ = [
    "NAMES", "SHAPE_NAMES", "TASK_NAMES", "AnswersExample", "EntitiesExample", "Entity", "NliExample",
    "SentimentExample",
    "SimilarExample", "StoryExample", "TopicsExample", "TrainingMissed", "checkpoint", "heldout", "key", "shape",
    "train",
]  # fmt: skip

NAMES: tuple[str, ...] = tuple(recipes.BY_NAME)
SHAPE_NAMES: tuple[str, ...] = tuple(shapes.BY_NAME)
TASK_NAMES: tuple[str, ...] = tuple(TASKS)

# What every checkpoint depends on; a task adds its own files.
_SOURCES = (
    "architectures.py", "examples.py", "objectives/objective.py", "recipe.py", "tokenization.py", "tokenizer_kinds.py",
    "trainer.py", "world.py",
)  # fmt: skip


def checkpoint(name: str) -> Path:
    """The folder of the trained checkpoint `name`; its own name is `name`.

    Raises KeyError for an unknown name, TrainingMissed when a build stays below the recipe's floor.
    """
    recipe = recipes.BY_NAME[name]

    def build(folder: Path) -> dict[str, Any]:
        from hfx.exporter.quiet import quiet_libraries
        from tests.zoo import generators, trainer  # noqa: F401 - the former completes the table of architectures

        with quiet_libraries():
            return dataclasses.asdict(trainer.train(recipe, folder))

    return cache.built(name, key(recipe), build)


def key(recipe: Recipe) -> str:
    """The digest under which the checkpoint of `recipe` is cached: it changes with all that decides the weights."""
    return cache.digest(recipe, _SOURCES + TASKS[recipe.task].sources)


def shape(name: str) -> Path:
    """The folder of the full-size, random-weight checkpoint `name`. Raises KeyError for an unknown name."""
    return shapes.built(name)


@overload
def heldout(task: Literal["sentiment"], count: int = 600) -> list[SentimentExample]: ...
@overload
def heldout(task: Literal["topics"], count: int = 600) -> list[TopicsExample]: ...
@overload
def heldout(task: Literal["nli"], count: int = 600) -> list[NliExample]: ...
@overload
def heldout(task: Literal["entities"], count: int = 600) -> list[EntitiesExample]: ...
@overload
def heldout(task: Literal["answers"], count: int = 600) -> list[AnswersExample]: ...
@overload
def heldout(task: Literal["similarity"], count: int = 600) -> list[SimilarExample]: ...
@overload
def heldout(task: Literal["stories", "summaries", "short-summaries"], count: int = 600) -> list[StoryExample]: ...
@overload
def heldout(task: str, count: int = 600) -> list[Any]: ...
def heldout(task: str, count: int = 600) -> list[Any]:
    """`count` labelled examples of `task` that no training saw. Raises KeyError for an unknown task."""
    return list(TASKS[task].generate("heldout", count))


def train(task: str, count: int = 8000) -> list[Any]:
    """`count` labelled examples of `task` from the training split. Raises KeyError for an unknown task."""
    return list(TASKS[task].generate("train", count))
