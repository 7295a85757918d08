"""Whether a request can ever be run by an engine: told at once, with the numbers.

Owns these checks; knows nothing of what else is waiting or running.
"""

from __future__ import annotations

from .errors import DoesNotFit, InvalidRequest
from .request import Request, check_for_model
from .spec import EngineSpec
from .waiting import PRIORITIES


def check(request: Request, spec: EngineSpec, slots: int) -> None:
    """Raise InvalidRequest for what the model can't take, DoesNotFit for what is more than the engine has."""
    settings = request.settings
    check_for_model(request, spec.vocab_size, spec.kind)
    if type(request.priority) is not int or request.priority not in PRIORITIES:
        allowed = f"a whole number from {PRIORITIES[0]} to {PRIORITIES[-1]}"
        raise InvalidRequest("priority", request.priority, allowed)
    if request.deadline is not None and not isinstance(request.deadline, (int, float)):
        raise InvalidRequest("deadline", request.deadline, "seconds of time.monotonic, or none")
    if spec.beams and settings.num_beams not in spec.beams:
        raise InvalidRequest("num_beams", settings.num_beams, " or ".join(map(str, spec.beams)))
    if settings.rows > slots:
        raise DoesNotFit("rows", settings.rows, slots, "Ask for fewer beams or sequences, or open it with more slots")
    start = len(settings.decoder_prompt) if spec.has_encoder else len(request.prompt)
    if spec.has_encoder and len(request.prompt) > spec.max_source:
        raise DoesNotFit("source positions", len(request.prompt), spec.max_source, "Shorten the prompt")
    if start + settings.max_tokens > spec.max_length:
        needed = start + settings.max_tokens
        raise DoesNotFit("positions", needed, spec.max_length, "Shorten the prompt or lower max_tokens")
