"""What is never asked of a runner whose prompts go to an encoder: its decoder's own prompts are fed step by step."""

from __future__ import annotations

from collections.abc import Sequence

from .plan import Ids
from .runner import Outputs

REFUSAL = "this model's prompts are encoded"


class EncodedPrompts:
    """The calls of `Runner` that run prompts in the decoder; each is a bug of the caller."""

    mixes = False

    def prefill(self, first: int, prompts: Sequence[Ids], logits: bool) -> Outputs:
        """Raises RuntimeError."""
        raise RuntimeError(REFUSAL)

    def copy_row(self, source: int, target: int) -> None:
        """Raises RuntimeError."""
        raise RuntimeError(REFUSAL)

    def chunk(self, tokens: Ids, start: int, logits: bool) -> Outputs:
        """Raises RuntimeError."""
        raise RuntimeError(REFUSAL)

    def prefill_beside(self, units: int, first: int, prompts: Sequence[Ids], logits: bool) -> Outputs:
        """Raises RuntimeError."""
        raise RuntimeError(REFUSAL)

    def chunk_beside(self, units: int, tokens: Ids, start: int, logits: bool) -> Outputs:
        """Raises RuntimeError."""
        raise RuntimeError(REFUSAL)

    def land(self, row: int) -> None:
        """Raises RuntimeError."""
        raise RuntimeError(REFUSAL)
