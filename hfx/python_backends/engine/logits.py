"""The true logits of a run, from outputs that are padded and may want a factor a row.

Knows nothing of who reads them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .memory import Reserved
from .openvino_model import InferRequest

LOGITS, SCALE = "logits", "logit_scale"


class LogitsReader:
    """For runs of at most `rows` rows, whose first `vocabulary` columns are tokens."""

    def __init__(self, rows: int, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._scaled: NDArray[np.float32] = Reserved((rows, vocabulary), np.float32).array

    def read(self, request: InferRequest) -> NDArray[np.float32]:
        """[rows, vocabulary], valid until the next run or read."""
        logits: NDArray[np.float32] = request.output(LOGITS)[:, : self._vocabulary]
        if not request.gives(SCALE):
            return logits
        return np.multiply(logits, request.output(SCALE), out=self._scaled[: len(logits)])
