"""transformers' `generate` over whatever model offers it: torch's, optimum's on ONNX Runtime, optimum-intel's.

Owns the generation settings and the padding. Knows no runtime.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from bench.peers.cases import Wanted
from bench.peers.model import Model

Ids = Sequence[int]


class Generating:
    """A Net of a model with `generate`."""

    def __init__(self, net: Any, model: Model) -> None:
        import transformers

        transformers.logging.set_verbosity_error()  # it remarks on settings that are the checkpoint's own
        self._net = net
        self._start = model.start
        self._settings: Any = copy.deepcopy(net.generation_config)
        ends = self._settings.eos_token_id
        self._ends = frozenset(ends if isinstance(ends, list) else [ends])
        if self._settings.pad_token_id is None:
            self._settings.pad_token_id = min((each for each in self._ends if each is not None), default=0)

    def generate(self, prompts: Sequence[Ids], wanted: Wanted) -> list[Ids]:
        """The new ids of each row."""
        import torch

        ids, mask = self._padded(prompts)
        # Set as the model's own: defaults of a passed one would yield to that.
        self._net.generation_config = self._config(wanted)
        with torch.inference_mode():
            found = self._net.generate(input_ids=ids, attention_mask=mask)
        given = 1 if self._start is not None else ids.shape[1]
        return [self._whole(row) for row in found[:, given:].tolist()]

    def _config(self, wanted: Wanted) -> Any:
        config = copy.deepcopy(self._settings)
        config.update(
            do_sample=False,
            num_beams=wanted.beams,
            no_repeat_ngram_size=wanted.ngram,
            max_new_tokens=wanted.new,
            min_new_tokens=wanted.new,  # the end token is forbidden before
            min_length=0,
            max_length=None,
            decoder_start_token_id=self._start,
        )
        return config

    def _padded(self, prompts: Sequence[Ids]) -> tuple[Any, Any]:
        """Ids and mask; a decoder's prompts end together, as the new tokens follow them."""
        import torch

        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self._settings.pad_token_id, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            place = slice(0, len(prompt)) if self._start is not None else slice(width - len(prompt), width)
            ids[row, place] = torch.tensor(prompt)
            mask[row, place] = 1
        return ids, mask

    def _whole(self, row: list[int]) -> list[int]:
        """Up to the first end token, that one included: what follows is padding."""
        for place, token in enumerate(row):
            if token in self._ends:
                return row[: place + 1]
        return row


def model_class(model: Model, prefix: str = "Auto") -> str:
    """The name of the class that generates: of transformers, or with another prefix of optimum."""
    task = "CausalLM" if model.start is None else "Seq2SeqLM"
    return f"{prefix}ModelFor{task}"
