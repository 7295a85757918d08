"""The tasks that have a postprocessing step.

A model folder holds the file of its own task only, so that the table is of names and the import is late.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from .inputs import Tensors

# Task: the module, which has a class Postprocessor.
MODULES = {
    "text-classification": "text_classification",
    "zero-shot-classification": "zero_shot_classification",
    "token-classification": "token_classification",
    "question-answering": "question_answering",
    "text-ranking": "text_ranking",
}


class Postprocessor(Protocol):
    """From a request's tensors (rows first) to its answers. Raises inputs.InvalidInput for what can't be taken."""

    required: tuple[str, ...]
    optional: tuple[str, ...]

    def answer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """The task's output tensors by name; `tensors` has all of `required` and any of `optional`."""


def open_postprocessor(folder: Path | str) -> Postprocessor:
    """The postprocessor of `settings.json` (and, for token-classification, `tokenizer.json`) in `folder`."""
    folder = Path(folder)
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    task = settings.get("task")
    if task not in MODULES:
        raise ValueError(f"{folder / 'settings.json'}: task {task!r} has no postprocessing step")
    module = importlib.import_module(f".{MODULES[task]}", __package__)
    postprocessor: Postprocessor = module.Postprocessor.read(settings, folder)
    return postprocessor
