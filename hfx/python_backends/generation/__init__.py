"""Text in, text out: tokens become text and texts tokens around the engine. Needs tokenizers and the engine only."""

from .generator import TextGenerator
from .results import Generated, Piece
from .streams import TextStream

__all__ = ["Generated", "Piece", "TextGenerator", "TextStream"]
