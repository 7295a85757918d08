"""From a model folder (tokenizer.json, settings.json) to the encoder of its task."""

from __future__ import annotations

from collections.abc import Sequence as Many
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from .hypotheses import HypothesisEncoder
from .inputs import InvalidInput, Tensors
from .pairs import PairEncoder
from .rows import Row, tensors
from .settings import Settings
from .texts import TextEncoder
from .windows import WindowEncoder

__all__ = ["Encoder", "InvalidInput", "Row", "Settings", "make_encoder", "open_encoder", "tensors"]


class Encoder(Protocol):
    """What the encoders of all tasks have in common.

    An item is a row: a text, (question, context), (text, labels), (query, text).
    """

    settings: Settings
    fields: tuple[str, ...]

    def items(self, tensors: Tensors) -> list[Any]:
        """The items of a request's STRING tensors `fields`. Raises InvalidInput."""

    def encode(self, items: Many[Any]) -> list[Row | InvalidInput]:
        """One row, or the reason why there is none, for each item; the tokenizer sees them all at once."""


def open_encoder(folder: Path | str) -> Encoder:
    """The encoder of the files `settings.json` and `tokenizer.json` in `folder`. Raises ValueError, OSError."""
    return make_encoder(Path(folder) / "tokenizer.json", Settings.read(Path(folder) / "settings.json"))


def make_encoder(tokenizer_json: Path | str, settings: Settings) -> Encoder:
    """The encoder of a tokenizer file and settings that need not be a file yet."""
    tokenizer = Tokenizer.from_file(str(tokenizer_json))
    if settings.task == "question-answering":
        return WindowEncoder(tokenizer, settings)
    if settings.task == "zero-shot-classification":
        return HypothesisEncoder(tokenizer, settings)
    if settings.task == "text-ranking":
        return PairEncoder(tokenizer, settings)
    return TextEncoder(tokenizer, settings)
