"""The text of one sequence as the engine's events come: tokens to text, up to the first stop string.

Owns what is counted and when the text is over; knows no handles and no requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.request import Completion, Token
from .decodings import Decoding
from .stopping import StopStrings


class Transcript:
    """`tokens` were generated so far, to the one that completed a stop string (`stopped`) at most."""

    def __init__(self, decoding: Decoding, stop_words: Sequence[str]) -> None:
        self._decoding = decoding
        self._stops = StopStrings(stop_words)
        self._log_probs: list[float] = []
        self.tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come; what comes after it is left out."""
        return self._stops.found

    def push(self, token: Token) -> str:
        """The text that is decided by the next token."""
        return self._push(token.id, token.log_prob)

    def complete(self, completion: Completion) -> str:
        """The rest of the text; tokens that have not been pushed, as those of beams, are taken from `completion`."""
        text = ""
        for at in range(self.tokens, len(completion.ids)):
            text += self._push(completion.ids[at], None if completion.log_probs is None else completion.log_probs[at])
            if self.stopped:
                return text
        text += self._stops.push(self._decoding.finish())
        return text + self._stops.finish()

    def take_log_probs(self) -> tuple[float, ...]:
        """Those of the tokens since the last call."""
        taken, self._log_probs = tuple(self._log_probs), []
        return taken

    def _push(self, token_id: int, log_prob: float | None) -> str:
        self.tokens += 1
        if log_prob is not None:
            self._log_probs.append(log_prob)
        return self._stops.push(self._decoding.push(token_id))
