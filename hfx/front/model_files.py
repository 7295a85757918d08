"""Files of the served models, read from the repository: tokenizers, for counts and lists of tokens, and settings.

They are opened when a request first needs one, and again once they have changed. A thread does so, and reads texts that
are not short: the event loop has other requests.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from hfx.front.catalog import ServedModel
from hfx.front.refusals import Refusal
from hfx.names import GENERATION_TASKS, MANIFEST_FILE, POSTPROCESS_SUFFIX, STREAM_SUFFIX, TOKENIZE_SUFFIX

TOKENIZER, SETTINGS, CHAT, GENERATION = "tokenizer.json", "settings.json", "chat.json", "generation.json"
SHORT = 2000  # characters that are read in less time than a thread takes to begin
Stamp = tuple[int, int]


class ModelFiles:
    """Those of the models in the folder `repository`; an empty path: none can be had."""

    def __init__(self, repository: str) -> None:
        self._repository = repository
        self._opened: dict[str, tuple[Stamp, Any]] = {}
        self._warm: set[str] = set()  # models whose tokenizers are open

    async def encodings(self, model: ServedModel, texts: list[str], special: bool = True) -> list[Any]:
        """The tokenizers.Encoding of each text, as the model reads it, or without `special` tokens."""
        if model.name in self._warm and sum(map(len, texts)) <= SHORT:
            return self._encodings(model, texts, special)
        encodings = await asyncio.to_thread(self._encodings, model, texts, special)
        self._warm.add(model.name)
        return encodings

    async def count(self, model: ServedModel, texts: list[str]) -> int:
        """The number of tokens that the model reads of all texts."""
        return sum(len(encoding) for encoding in await self.encodings(model, texts))

    def settings(self, model: ServedModel, suffix: str = POSTPROCESS_SUFFIX) -> dict[str, Any]:
        """The settings.json of a member of an encoder."""
        values: dict[str, Any] = self._open(self._folder(model, suffix) / SETTINGS, _read_json)
        return values

    def chat(self, model: ServedModel) -> dict[str, Any] | None:
        """The chat template of a generator, and the texts of its special tokens; None where it has none."""
        file = self._folder(model, STREAM_SUFFIX) / CHAT
        values: dict[str, Any] | None = self._open(file, _read_json) if file.exists() else None
        return values

    def generation(self, model: ServedModel) -> dict[str, Any]:
        """The limits and default settings of a generator: its generation.json."""
        values: dict[str, Any] = self._open(self._folder(model, STREAM_SUFFIX) / GENERATION, _read_json)
        return values

    def manifest(self, model: ServedModel) -> dict[str, Any]:
        """What the model is made of: its hfx.json."""
        values: dict[str, Any] = self._open(self._folder(model, "").parent / MANIFEST_FILE, _read_json)
        return values

    def _folder(self, model: ServedModel, suffix: str) -> Path:
        if not self._repository:
            raise Refusal(501, "This front has no model repository. Start it by `hfx serve`.")
        return Path(self._repository, f"{model.name}{suffix}", "1")

    def _encodings(self, model: ServedModel, texts: list[str], special: bool) -> list[Any]:
        suffix = STREAM_SUFFIX if model.task in GENERATION_TASKS else TOKENIZE_SUFFIX
        tokenizer = self._open(self._folder(model, suffix) / TOKENIZER, _open_tokenizer)
        return tokenizer.encode_batch(texts, add_special_tokens=special)  # type: ignore[no-any-return]

    def _open(self, file: Path, read: Any) -> Any:
        """What `read` makes of `file`, as the file is now. Raises Refusal (501)."""
        try:
            status = file.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if self._opened.get(str(file), (None,))[0] != stamp:
                self._opened[str(file)] = (stamp, read(file))
        except (ImportError, OSError, ValueError) as error:
            message = f"{file.name} of {file.parent.parent.name} can't be opened: {error}."
            raise Refusal(501, f"{message} See that the model is in the repository and tokenizers installed.") from None
        return self._opened[str(file)][1]


def _open_tokenizer(file: Path) -> Any:
    """The tokenizer, cut at the model's longest text as the model's own step does it."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    if file.with_name(SETTINGS).exists():
        values = _read_json(file.with_name(SETTINGS))
        tokenizer.enable_truncation(values["max_length"], direction=values.get("truncation_side", "right"))
    return tokenizer


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))
