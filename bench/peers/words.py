"""Texts to token ids and back by the checkpoint's own tokenizer, cut where the published model would cut them.

Runs in the peer's process, inside the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.peers.model import Model, Reading

Ids = Sequence[int]


class Words:
    """The tokenizer of `model`."""

    def __init__(self, model: Model, reading: Reading) -> None:
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(model.files)
        self._reading = reading
        self._decodes = reading.kind == "decoder"
        self._tokenizer.truncation_side = "left" if self._decodes else "right"

    def encode(self, texts: Sequence[str], new: int) -> list[list[int]]:
        """The prompt of each text, with room for `new` tokens more."""
        longest = self._reading.longest - (new if self._decodes else 0)
        if longest < 1:
            raise ValueError(f"the model has {self._reading.longest} positions, too few for {new} new tokens")
        prefixed = [self._reading.prefix + text for text in texts]
        found = self._tokenizer(prefixed, truncation=True, max_length=longest, verbose=False)["input_ids"]
        first = self._tokenizer.bos_token_id
        if self._decodes and first is not None:
            found = [ids or [first] for ids in found]  # as hfx begins a text from nothing
        if empty := [number for number, ids in enumerate(found) if not ids]:
            raise ValueError(f"text {empty[0]} has no token")
        return found  # type: ignore[no-any-return]

    def decode(self, rows: Sequence[Ids]) -> tuple[str, ...]:
        """The text of each row, without special tokens."""
        return tuple(self._tokenizer.batch_decode(rows, skip_special_tokens=True))
