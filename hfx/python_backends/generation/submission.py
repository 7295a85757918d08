"""One call's requests: from a text and the choices for it to runs in the engine.

Owns what the runs of a call have in common (name, priority, deadline) and their cancellation; knows nothing of how
their texts are read.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from dataclasses import dataclass

from ..engine.engine import Engine
from ..engine.errors import InvalidRequest
from ..engine.request import Request
from .detokenizer import Detokenizer
from .prompts import PromptEncoder, Text
from .runs import Run
from .settings import Choices
from .transcript import Transcript


@dataclass(frozen=True)
class TextModel:
    """What the calls of a model share."""

    engine: Engine
    prompts: PromptEncoder
    detokenizer: Detokenizer


class Submission:
    """Submits the texts of one call, or the parts of one document of it."""

    def __init__(
        self, model: TextModel, choices: Choices, request_id: str = "", priority: int = 0, deadline: float | None = None
    ) -> None:
        self.choices = choices
        self._model = model
        self._id = request_id
        self._priority = priority
        self._deadline = deadline
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        self._cancelled = False
        self._lock = threading.Lock()  # of the two above

    def submit(self, text: Text) -> Run:
        """A run of one text; its end at once, if the call is cancelled. Raises EngineError in its kinds."""
        prompt = self._model.prompts.encode(text, self.choices)
        request = Request(prompt.ids, prompt.settings, id=self._id, priority=self._priority, deadline=self._deadline)
        handle = self._model.engine.submit(request)
        stops = self.choices.stop_words
        texts = range(prompt.settings.num_return_sequences)
        run = Run(handle, prompt, [Transcript(self._model.detokenizer.open(), stops) for _ in texts])
        with self._lock:
            self._runs.add(run)
            cancelled = self._cancelled
        if cancelled:
            run.cancel()
        return run

    def cancel(self) -> None:
        """Cancel every run, those that are submitted later too. From any thread."""
        with self._lock:
            self._cancelled = True
            runs = tuple(self._runs)
        for run in runs:
            run.cancel()


def deadline_in(timeout: float | None) -> float | None:
    """The deadline `timeout` seconds from now. Raises InvalidRequest."""
    if timeout is None:
        return None
    if type(timeout) not in (int, float) or not 0 <= timeout < math.inf:
        raise InvalidRequest("timeout", timeout, "seconds, at least 0")
    return time.monotonic() + timeout
