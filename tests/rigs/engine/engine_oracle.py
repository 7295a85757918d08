"""The engine's expected answers on the toy models, by the engine's reference."""

from __future__ import annotations

import numpy as np

from hfx.python_backends.engine.reference import answer
from hfx.python_backends.engine.request import Event, Request
from tests.rigs.engine import engine_toys as toys


def expected(request: Request) -> tuple[Event, ...]:
    """Return the engine's expected answer to `request` on a toy model."""
    source = request.prompt if request.settings.decoder_prompt else ()
    return answer(request, lambda rows: np.stack([toys.logits(row, source) for row in rows]))
