"""Canaries for as long as a server runs: its models are asked again and again, in threads beside the one that serves.

Owns the pace. What is asked and what an answer means is canary.py's; what is done about a dead model, the supervisor's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from hfx.triton import canary
from hfx.triton.canary import Question, Target

INTERVAL_SECONDS = 3.0  # between two questions to a model: they should not be felt


class Watch:
    """Canaries of the server at TARGET until `stop()`; each group of models has a thread, so none delays another."""

    def __init__(self, target: Target, interval: float = INTERVAL_SECONDS) -> None:
        self._target = target
        self._interval = interval
        self._stopped = threading.Event()
        self._fault = ""
        self._spawn(self._begin)

    def fault(self) -> str:
        """Why a model can't answer any longer; an empty string while all can."""
        return self._fault

    def stop(self) -> None:
        """Ask no more. Questions that still wait are left to break with their server."""
        self._stopped.set()

    def _begin(self) -> None:
        groups = self._groups()
        for place, group in enumerate(groups):
            self._spawn(self._ask_on, group, self._interval * place / len(groups))

    def _groups(self) -> list[list[Question]]:
        while not self._stopped.is_set():
            try:
                return canary.groups(canary.questions(self._target))
            except canary.UNANSWERED:  # a busy or dying server: whether it runs is for others to see
                self._stopped.wait(self._interval)
        return []

    def _ask_on(self, group: list[Question], head_start: float) -> None:
        self._stopped.wait(head_start)
        while not self._stopped.wait(self._interval):
            self._fault = self._fault or canary.ask_in_turn(self._target, group)

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, name="canary", daemon=True).start()
