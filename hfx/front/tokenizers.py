"""The tokenizers of the served models, read from the repository: for counts of tokens, and for token lists.

They are opened when a request first needs one, in a thread, and again once their files have changed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from hfx.front.catalog import ServedModel
from hfx.front.refusals import Refusal
from hfx.names import GENERATION_TASKS, STREAM_SUFFIX, TOKENIZE_SUFFIX

FILE = "tokenizer.json"
Stamp = tuple[int, int]


class Tokenizers:
    """Those of the models in the folder `repository`; an empty path: none can be had."""

    def __init__(self, repository: str) -> None:
        self._repository = repository
        self._opened: dict[str, tuple[Stamp, Any]] = {}

    async def encodings(self, model: ServedModel, texts: list[str], special: bool = True) -> list[Any]:
        """The tokenizers.Encoding of each text, as the model reads it, or without `special` tokens."""
        return await asyncio.to_thread(self._encodings, model, texts, special)

    async def count(self, model: ServedModel, texts: list[str]) -> int:
        """The number of tokens that the model reads of all texts."""
        return sum(len(encoding) for encoding in await self.encodings(model, texts))

    def folder(self, model: ServedModel) -> Path:
        """The folder of the tokenizer's files. Raises Refusal (501)."""
        if not self._repository:
            raise Refusal(501, "This front has no model repository. Start it by `hfx serve`.")
        suffix = STREAM_SUFFIX if model.task in GENERATION_TASKS else TOKENIZE_SUFFIX
        return Path(self._repository, f"{model.name}{suffix}", "1")

    def _encodings(self, model: ServedModel, texts: list[str], special: bool) -> list[Any]:
        return self._tokenizer(model).encode_batch(texts, add_special_tokens=special)  # type: ignore[no-any-return]

    def _tokenizer(self, model: ServedModel) -> Any:
        try:
            import tokenizers

            file = self.folder(model) / FILE
            status = file.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if self._opened.get(model.name, (None,))[0] != stamp:
                self._opened[model.name] = (stamp, _open(tokenizers, file))
        except (ImportError, OSError, ValueError) as error:
            message = f"The tokenizer of {model.name!r} can't be opened: {error}. See that tokenizers is installed."
            raise Refusal(501, message) from None
        return self._opened[model.name][1]


def _open(tokenizers: Any, file: Path) -> Any:
    """The tokenizer, cut at the model's longest text as the model's own step does it."""
    import json

    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    settings = file.with_name("settings.json")
    if settings.exists():
        values = json.loads(settings.read_text("utf-8"))
        tokenizer.enable_truncation(values["max_length"], direction=values.get("truncation_side", "right"))
    return tokenizer
