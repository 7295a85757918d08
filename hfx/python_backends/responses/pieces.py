"""What a piece of text says, by the names of a generator's output tensors."""

from __future__ import annotations

from typing import Any

from ..generation.results import Piece


def values_of(piece: Piece) -> dict[str, Any]:
    """A piece by the names of output tensors."""
    return {
        "text_output": piece.text,
        "finish_reason": piece.finish_reason or "",
        "input_tokens": piece.input_tokens,
        "output_tokens": piece.output_tokens,
        "truncated_tokens": piece.truncated_tokens,
        "output_log_probs": piece.log_probs or (),
    }
