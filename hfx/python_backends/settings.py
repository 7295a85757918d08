"""settings.json of the tokenizing step: what decides, beside tokenizer.json, how a text becomes tensors."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .tasks import TASKS


@dataclass(frozen=True)
class Settings:
    """How texts become tensors.

    `widths` are the lengths (tokens) that sequences are padded to, ascending; the last one is at least `max_length`.
    `inputs` are the net's inputs; `doc_stride`, `question_first`, `cls_id` concern question-answering,
    `hypothesis_template` zero-shot-classification. `vocab_size` is the number of the net's embeddings where
    the tokenizer has ids beyond them, else None.
    """

    task: str
    max_length: int
    widths: tuple[int, ...]
    pad_id: int = 0
    pad_type_id: int = 0
    truncation_side: str = "right"
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    doc_stride: int = 0
    question_first: bool = True
    cls_id: int | None = None
    hypothesis_template: str = "This example is {}."
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        _check(self.task in TASKS, f"task is {self.task!r}, not one of {', '.join(TASKS)}")
        _check(self.max_length >= 1, f"max_length is {self.max_length}, not at least 1")
        _check(self.truncation_side in ("left", "right"), f"truncation_side is {self.truncation_side!r}")
        _check(list(self.widths) == sorted(set(self.widths)), f"widths {self.widths} do not ascend")
        _check(bool(self.widths) and self.widths[-1] >= self.max_length, f"no width holds {self.max_length} tokens")
        template = self.hypothesis_template
        _check(template.format("x") != template, f"hypothesis_template {template!r} has no place {{}} for the label")

    @classmethod
    def read(cls, path: Path | str) -> Settings:
        """The settings in the JSON file `path`; keys that it does not know are left alone. Raises ValueError."""
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
        known = {field.name for field in fields(cls)}
        chosen: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in raw.items() if key in known
        }
        try:
            return cls(**chosen)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error


def _check(right: bool, otherwise: str) -> None:
    if not right:
        raise ValueError(otherwise)
