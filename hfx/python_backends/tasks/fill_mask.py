"""A masked language model's replacements for mask tokens, as transformers' FillMaskPipeline (5) gives them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..spaces import clean_up
from ..tokenizer_file import open_tokenizer
from .inputs import Tensors, strings, top_k
from .text_classification import softmax

DEFAULT_TOP_K = 5
MOST_MASKS = 16  # of a text: each mask has a row of logits as wide as the vocabulary; the net makes no more rows
MOST_TOP_K = 100  # of a mask: each fill has a whole text in the answer
MOST_TARGETS, LONGEST_TARGET = 1000, 1000  # the number for a text; bytes

Fill = dict[str, Any]


class Postprocessor:
    """logits [rows, masks, vocabulary], input_ids and attention_mask [rows, width] -> fills STRING [rows, 1].

    The fills of a row are JSON: for each mask a list of {score, token, token_str, sequence}, best first. With `targets`
    STRING [rows, n], only these tokens count.
    """

    required: tuple[str, ...] = ("logits", "input_ids", "attention_mask")
    optional: tuple[str, ...] = ("top_k", "targets")

    def __init__(self, tokenizer: Any, mask_id: int, pad_id: int | None, cleans_up: bool) -> None:
        self._tokenizer = tokenizer
        self._mask_id = mask_id
        self._pad_id = pad_id
        self._cleans_up = cleans_up

    @classmethod
    def read(cls, settings: Mapping[str, Any], folder: Path) -> Postprocessor:
        """Read settings.json (mask_id, pad_id, cleans_up) and tokenizer.json."""
        tokenizer = open_tokenizer(folder / "tokenizer.json")
        return cls(tokenizer, settings["mask_id"], settings["pad_id"], settings["cleans_up"])

    def answer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Return the fills of each row.

        Raises InvalidInput for a text without masks or with too many, and for invalid settings.
        """
        logits = tensors["logits"]
        ids = [row[mask != 0] for row, mask in zip(tensors["input_ids"], tensors["attention_mask"], strict=True)]
        count = top_k(tensors, DEFAULT_TOP_K, logits.shape[-1])
        if count > MOST_TOP_K:
            raise InvalidInput(f"top_k must be at most {MOST_TOP_K}")
        targets = tensors.get("targets", [None] * len(ids))
        rows = [self._fills(*row, count) for row in zip(logits, ids, targets, strict=True)]
        return {"fills": strings([[json.dumps(fills, ensure_ascii=False)] for fills in rows])}

    def _fills(
        self, logits: NDArray[np.float32], ids: NDArray[np.int32], targets: Sequence[bytes] | None, count: int
    ) -> list[list[Fill]]:
        places = np.flatnonzero(ids == self._mask_id)
        if not places.size:
            raise InvalidInput(f"text_input has no mask token ({self._tokenizer.id_to_token(self._mask_id)})")
        if len(places) > MOST_MASKS:
            raise InvalidInput(f"text_input has {len(places)} mask tokens; at most {MOST_MASKS} can be filled")
        scores, tokens = softmax(logits[: len(places)]), np.arange(logits.shape[-1])
        if targets is not None:
            tokens = self._target_ids(targets, logits.shape[-1])
            scores = scores[:, tokens]
        return [
            [self._fill(ids, place, int(tokens[at]), row[at], len(places) == 1) for at in _best(row, count)]
            for place, row in zip(places, scores, strict=True)
        ]

    def _fill(self, ids: NDArray[np.int32], place: int, token: int, score: np.float32, is_only: bool) -> Fill:
        filled = ids.copy()
        filled[place] = token
        return {
            "score": float(score),
            "token": token,
            "token_str": self._text([token]),
            # With several masks, special tokens are shown, because the other masks are special tokens.
            "sequence": self._text(filled[filled != self._pad_id].tolist(), skips_special=is_only),
        }

    def _text(self, ids: list[int], skips_special: bool = False) -> str:
        text = str(self._tokenizer.decode(ids, skip_special_tokens=skips_special))
        return clean_up(text) if self._cleans_up else text

    def _target_ids(self, targets: Sequence[bytes], vocabulary: int) -> NDArray[np.int64]:
        """Return the ids of the tokens that `targets` are, or begin with; each id once."""
        if len(targets) > MOST_TARGETS:
            raise InvalidInput(f"targets has {len(targets)} texts; at most {MOST_TARGETS} are taken")
        if (longest := max(map(len, targets), default=0)) > LONGEST_TARGET:
            raise InvalidInput(f"targets has a text of {longest} bytes; at most {LONGEST_TARGET} are taken")
        found: set[int] = set()
        for target in (raw.decode("utf-8", "replace") for raw in targets):
            token = self._tokenizer.token_to_id(target)
            ids = self._tokenizer.encode(target, add_special_tokens=False).ids if token is None else [token]
            found.update(ids[:1])
        if not found:
            raise InvalidInput("targets has no token of the vocabulary")
        if max(found) >= vocabulary:
            raise InvalidInput("targets has a token that the model has no score of")
        return np.array(list(found))


def _best(scores: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Return the positions of the `count` largest scores, largest first; equal scores keep their order."""
    if count < len(scores):
        least = np.partition(scores, -count)[-count]
        candidates = np.flatnonzero(scores >= least)
        return candidates[np.argsort(-scores[candidates], kind="stable")][:count]
    return np.argsort(-scores, kind="stable")
