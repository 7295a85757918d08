"""How much the gate asks of a checkpoint: all the texts of a small one, a few short ones of a large one.

Owns the table. torch is the slow side: BART-large's decoder reads 0.8 GB of weights for every step, so that an export
of it would take an hour on the work of a small model.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """Texts that are continued greedily by `tokens`, and those of them that are continued with beams by `beam_tokens`.

    A text has at most `prompt_tokens`; `long_texts` further ones are as long as the model takes, up to LONG_TOKENS.
    `alone` of the texts are also run one by one.
    """

    texts: int
    tokens: int
    beam_texts: int
    beam_tokens: int
    prompt_tokens: int
    long_texts: int
    alone: int


LONG_TOKENS = 400  # beyond the tokens that the engine runs at once
# Parameters up to which an effort is taken.
EFFORTS: tuple[tuple[float, Effort], ...] = (
    (60e6, Effort(texts=128, tokens=32, beam_texts=112, beam_tokens=24, prompt_tokens=128, long_texts=2, alone=24)),
    (200e6, Effort(texts=32, tokens=24, beam_texts=16, beam_tokens=16, prompt_tokens=64, long_texts=0, alone=8)),
    (float("inf"), Effort(texts=12, tokens=16, beam_texts=6, beam_tokens=8, prompt_tokens=40, long_texts=0, alone=3)),
)


def effort_for(parameters: int) -> Effort:
    """The effort for a checkpoint of so many parameters."""
    return next(effort for most, effort in EFFORTS if parameters <= most)
