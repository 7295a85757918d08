"""Where a text ends because of its stop strings.

The text ends before the stop string that is complete first (of two that are complete at once, the longer one), however
tokens and pieces are cut.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Lets text through up to the first stop string; what may be the beginning of one waits."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that can be shown now that `text` has come; nothing once a stop string was found."""
        if self.found or not self._stops:
            return "" if self.found else text
        text = self._held + text
        stop = _first_complete(text, self._stops)
        if stop is not None:
            self.found = True
            self._held = ""
            return text[:stop]
        waits = _beginning_of_one(text, self._stops)
        self._held = text[len(text) - waits :]
        return text[: len(text) - waits]

    def finish(self) -> str:
        """What still waits, as no text follows."""
        held, self._held = self._held, ""
        return held


def _first_complete(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop string begins that ends first."""
    places = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(places)[1] if places else None


def _beginning_of_one(text: str, stops: Sequence[str]) -> int:
    """The length of the longest end of `text` that a stop string begins with."""
    longest = min(len(text), max(map(len, stops)) - 1)
    return next((n for n in range(longest, 0, -1) if any(stop.startswith(text[-n:]) for stop in stops)), 0)
