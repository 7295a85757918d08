"""transformers' text-classification pipeline over whatever model it takes: torch's, optimum's, optimum-intel's.

Knows no runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.peers.model import Model


class Classifying:
    """The pipeline, and the net alone."""

    def __init__(self, net: Any, model: Model) -> None:
        import torch
        import transformers
        from transformers import AutoTokenizer, pipeline

        transformers.logging.set_verbosity_error()
        self._net = net
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model.files)
        self._pipeline: Any = pipeline(
            "text-classification", model=net, tokenizer=self._tokenizer, device=torch.device("cpu")
        )

    def labels(self, texts: Sequence[str], longest: int) -> list[str]:
        """The likeliest label of each text, of which `longest` tokens are read at most."""
        found = self._pipeline(list(texts), batch_size=len(texts), truncation=True, max_length=longest)
        return [each["label"] for each in found]

    def encoded(self, texts: Sequence[str]) -> dict[str, Any]:
        """The tensors that the net takes."""
        found = self._tokenizer(list(texts), return_tensors="pt", padding=True)
        return {name: tensor for name, tensor in found.items() if name != "token_type_ids"}

    def logits(self, feed: dict[str, Any]) -> Any:
        """The net alone."""
        import torch

        with torch.inference_mode():
            return self._net(**feed).logits
