"""Small trained checkpoints of real architectures, made on the spot from a small world of sentences.

`checkpoint(name)` gives the folder of a trained checkpoint and builds it when it is absent; `heldout(task)` the
labelled data that no training saw. Importing this loads no torch.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal, overload

from tests.zoo import cache, recipes, trainer, world
from tests.zoo.data import answers, entities, sentiment, similarity, stories, topics
from tests.zoo.recipes import Recipe
from tests.zoo.tasks import TASKS
from tests.zoo.trainer import TrainingMissed

__all__ = ["NAMES", "TASK_NAMES", "TrainingMissed", "checkpoint", "heldout", "key", "tokenizer", "train"]

NAMES: tuple[str, ...] = tuple(recipes.BY_NAME)
TASK_NAMES: tuple[str, ...] = tuple(TASKS)

# What every checkpoint depends on; a task adds its own files.
_SOURCES = (
    "architectures.py", "objectives/objective.py", "tokenization.py", "tokenizer_kinds.py", "trainer.py", "world.py",
)  # fmt: skip


def checkpoint(name: str) -> Path:
    """The folder of the trained checkpoint `name`; its own name is `name`.

    Raises KeyError for an unknown name, TrainingMissed when a build stays below the recipe's floor.
    """
    recipe = recipes.BY_NAME[name]

    def build(folder: Path) -> dict[str, Any]:
        from hfx.exporter.quiet import quiet_libraries

        with quiet_libraries():
            return dataclasses.asdict(trainer.train(recipe, folder))

    return cache.built(name, key(recipe), build)


def tokenizer(name: str) -> Path:
    """A folder with the tokenizer of the checkpoint `name`, which needs no training of its model. Raises KeyError."""
    recipe = recipes.BY_NAME[name]

    def build(folder: Path) -> dict[str, Any]:
        trainer.train_tokenizer(recipe).save_pretrained(folder)
        return {}

    return cache.built(f"{name}-tokenizer", key(recipe), build)


def key(recipe: Recipe) -> str:
    """The digest under which the checkpoint of `recipe` is cached: it changes with all that decides the weights."""
    return cache.digest(recipe, _SOURCES + TASKS[recipe.task].sources)


@overload
def heldout(task: Literal["sentiment"], count: int = 600) -> list[sentiment.Example]: ...
@overload
def heldout(task: Literal["topics"], count: int = 600) -> list[topics.Example]: ...
@overload
def heldout(task: Literal["entities"], count: int = 600) -> list[entities.Example]: ...
@overload
def heldout(task: Literal["answers"], count: int = 600) -> list[answers.Example]: ...
@overload
def heldout(task: Literal["similarity"], count: int = 600) -> list[similarity.Example]: ...
@overload
def heldout(task: Literal["stories", "summaries", "short-summaries"], count: int = 600) -> list[stories.Example]: ...
@overload
def heldout(task: str, count: int = 600) -> list[Any]: ...
def heldout(task: str, count: int = 600) -> list[Any]:
    """`count` labelled examples of `task` that no training saw. Raises KeyError for an unknown task."""
    return world.draw(TASKS[task].compose, TASKS[task].data, "heldout", count)


def train(task: str, count: int = 8000) -> list[Any]:
    """`count` labelled examples of `task` from the training split. Raises KeyError for an unknown task."""
    return world.draw(TASKS[task].compose, TASKS[task].data, "train", count)
