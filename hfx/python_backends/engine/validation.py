"""Whether a model and an engine can ever run a request, whatever else waits or runs: refused with the numbers."""

from __future__ import annotations

from collections.abc import Iterable

from .checks import Ids
from .errors import DoesNotFit, InvalidRequest
from .request import Request
from .spec import EngineSpec


def check(request: Request, spec: EngineSpec, slots: int) -> None:
    """Raise InvalidRequest for what the model can't take, DoesNotFit for what is more than the engine has."""
    settings = request.settings
    check_for_model(request, spec.vocab_size, spec.kind)
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


def check_for_model(request: Request, vocabulary: int, kind: str) -> None:
    """Refuse what a model of `vocabulary` ids and `kind` (as in engine.json) can't take. Raises InvalidRequest."""
    settings = request.settings
    if kind == "encoder-decoder" and not settings.decoder_prompt:
        raise InvalidRequest("decoder_prompt", (), "the ids that the model's decoder starts with")
    if kind == "decoder" and settings.decoder_prompt:
        raise InvalidRequest("decoder_prompt", settings.decoder_prompt, "none, as the model has no encoder")
    for name, ids in _all_ids(request):
        if ids and max(ids) >= vocabulary:
            raise InvalidRequest(name, max(ids), f"ids from 0 to {vocabulary - 1}")


def _all_ids(request: Request) -> Iterable[tuple[str, Ids]]:
    settings = request.settings
    yield "prompt", request.prompt
    for name in ("eos_ids", "decoder_prompt", "suppress_ids", "begin_suppress_ids"):
        yield name, getattr(settings, name)
    for name in ("bad_words_ids", "stop_sequences"):
        yield name, tuple(one for sequence in getattr(settings, name) for one in sequence)
    for name in ("forced_bos_id", "forced_eos_id"):
        value = getattr(settings, name)
        yield name, () if value is None else (value,)
