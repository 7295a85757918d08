"""What generators answer: a whole text, or its pieces as they come; frozen, and decoded here.

Nothing here sends anything, and nothing knows how texts are generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hfx.client.outputs import number, text, truncated_tokens
from hfx.errors import RequestCancelled
from hfx.names import FINISH_REASON, INPUT_TOKENS, OUTPUT_LOG_PROBS, OUTPUT_TOKENS, TEXT_OUTPUT

if TYPE_CHECKING:
    from hfx.client.tensors import Tensors

CANCELLED = "cancelled"


@dataclass(frozen=True)
class Piece:
    """The next part of a text.

    `finish_reason` is empty but for the last piece, whose text may be empty: "stop" (an end token or a stop word),
    "length" (max_tokens, or the model is full). The counts are those of the request up to here: tokens that the model
    has read, tokens that it has generated, and tokens of the input that it did not get to see. `log_probs` are those
    of the tokens since the piece before, where `return_log_probs` asks for them.
    """

    text: str
    finish_reason: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    truncated_tokens: int = 0
    log_probs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Generation:
    """A generated text; the fields are those of its pieces, the texts and log-probabilities joined.

    `finish_reason` is "stop", "length", or "cancelled" for a stream that its reader has cancelled.
    """

    text: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    truncated_tokens: int = 0
    log_probs: tuple[float, ...] = ()


def decode_piece(outputs: Tensors) -> Piece:
    """From `text_output` and `finish_reason` BYTES [1, 1], counts INT32 [1, 1], `output_log_probs` FP32 [1, n].

    Raises RequestCancelled for what the server has ended by itself.
    """
    piece = Piece(
        text=text(outputs, TEXT_OUTPUT),
        finish_reason=text(outputs, FINISH_REASON),
        input_tokens=number(outputs, INPUT_TOKENS),
        output_tokens=number(outputs, OUTPUT_TOKENS),
        truncated_tokens=truncated_tokens(outputs),
        log_probs=tuple(outputs[OUTPUT_LOG_PROBS].ravel().tolist()) if OUTPUT_LOG_PROBS in outputs else (),
    )
    if piece.finish_reason == CANCELLED:
        raise RequestCancelled(
            f"The server ended the request after {piece.output_tokens} tokens.", "Send it again; see the server's log."
        )
    return piece


def decode_generation(outputs: Tensors) -> Generation:
    """From the same tensors, of an answer in one piece."""
    return joined([decode_piece(outputs)])


def joined(pieces: Sequence[Piece]) -> Generation:
    """The text that PIECES are of; without the last piece, it has been cancelled."""
    last = pieces[-1] if pieces else Piece("")
    return Generation(
        text="".join(piece.text for piece in pieces),
        finish_reason=last.finish_reason or CANCELLED,
        input_tokens=last.input_tokens,
        output_tokens=last.output_tokens,
        truncated_tokens=last.truncated_tokens,
        log_probs=tuple(one for piece in pieces for one in piece.log_probs),
    )
