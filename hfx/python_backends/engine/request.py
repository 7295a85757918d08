"""The engine's requests, settings and events: frozen values of token ids, checked when they are made.

The settings with their ranges and defaults are in generation_settings.py; contradictions between settings are refused
here. A search (search.py) makes the events of a request. Clients import this file, so it needs no numpy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Optional

from ..checks import Ids, boolean, integer, optional, token_id, token_ids, token_sequences
from ..errors import DoesNotFit, EngineError, InvalidRequest
from .generation_settings import BEAMS, MOST_ALTERNATIVES, ROW, Decoding, logit_biases, setting
from .spec import EngineSpec

if TYPE_CHECKING:  # it needs numpy
    from .matcher import NewMatcher

FinishReason = Literal["stop", "length", "cancelled"]
Top = tuple[tuple[int, float], ...]  # ids of most probable tokens and their log-probabilities, best first
MOST_SCORED = 2**17  # log-probabilities of a prompt, about 30 MB with their tokens and texts


def _maker(name: str, value: Any) -> Any:
    if not callable(value):
        raise InvalidRequest(name, value, "what makes a Matcher (matcher.py)")
    return value


@dataclass(frozen=True)
class Settings(Decoding):
    """How a request is decoded: the table's settings, and token ids.

    `max_tokens` and `min_tokens` count new tokens (`max_new_tokens`, `min_new_tokens`). Values that the decoding method
    does not read (`temperature` without `do_sample`, `length_penalty` without beams) must be in range and are otherwise
    ignored, as they may be a checkpoint's defaults. Lists are converted to tuples. Raises InvalidRequest.
    """

    eos_ids: tuple[int, ...] = setting((), "", token_ids, "end a sequence")
    decoder_prompt: tuple[int, ...] = setting(
        (), "", token_ids, "what an encoder-decoder's decoder starts with, else empty"
    )
    forced_bos_id: int | None = setting(None, "", optional(token_id), "the first new token, after a start of one")
    forced_eos_id: int | None = setting(None, "", optional(token_id), "the last new token where max_tokens is reached")
    suppress_ids: tuple[int, ...] = setting((), "", token_ids, "never chosen")
    begin_suppress_ids: tuple[int, ...] = setting(
        (), "", token_ids, "not chosen as the first token, or behind a forced one"
    )
    bad_words_ids: tuple[Ids, ...] = setting((), "", token_sequences, "sequences that are never completed")
    bad_words_at_start: bool = setting(
        True, "", boolean, "a bad word may begin with the prompt's first token, as in transformers 5, and not in 4.57"
    )
    renormalize_logits: bool = setting(False, "", boolean, "scores are log-probabilities again when edited", BEAMS)
    stop_sequences: tuple[Ids, ...] = setting((), "", token_sequences, "end a sequence whose new tokens end with one")
    log_probs: bool = setting(False, "", boolean, "log-probabilities of the new tokens")
    new_matcher: Optional[NewMatcher] = setting(  # noqa: RUF009
        None, "", optional(_maker), "which tokens may come next"
    )
    top_log_probs: int = setting(
        0, "", integer(0, MOST_ALTERNATIVES), "of so many most probable tokens in each place, too; not with beams"
    )
    prompt_log_probs: Optional[int] = setting(
        None, "", optional(integer(0, MOST_ALTERNATIVES)), "of the prompt's tokens, and of so many in each place"
    )

    def __post_init__(self) -> None:
        for each in fields(Settings):  # a subclass checks its own
            check = each.metadata[ROW].check
            object.__setattr__(self, each.name, check(each.name, getattr(self, each.name)))
        _refuse_contradictions(self)

    @property
    def rows(self) -> int:
        """The number of rows that a request with these settings occupies."""
        return max(self.num_beams, self.num_return_sequences)


@dataclass(frozen=True)
class Request:
    """A prompt (an encoder-decoder's source) and how to continue it.

    `deadline` is in seconds of `time.monotonic`. `document` is a number that the parts of a document share; 0 for other
    prompts. `truncated_tokens` is the number of tokens of the caller's text that `prompt` lacks; the engine does not
    use it. Raises InvalidRequest.
    """

    prompt: Ids
    settings: Settings
    deadline: float | None = None
    document: int = 0
    truncated_tokens: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", token_ids("prompt", self.prompt))
        if not self.prompt:
            raise InvalidRequest("prompt", self.prompt, "at least one token id")


@dataclass(frozen=True)
class Event:
    """The next token of sequence `index` or, with a `finish_reason`, the end of the sequence.

    The end has all new `ids` of the sequence: forced tokens and the end token included, without padding. `score` is the
    score of a beam: the sum of its processed log-probabilities, divided by length ** length_penalty. `log_probs`, if
    wanted, has the natural log-probability of each of `ids`, which is the model's own, before any processing. `top`, if
    wanted (Settings.top_log_probs), has the most probable tokens at the place of each of `ids`.

    If the event is `of_prompt`, `ids` are the next tokens of the prompt instead (Settings.prompt_log_probs). All of
    these events come before the first new token, and all of them have the index 0. The prompt's first token, which
    follows nothing, has the log-probability 0 and no `top`.
    """

    index: int
    ids: Ids
    finish_reason: FinishReason | None = None
    score: float | None = None
    log_probs: tuple[float, ...] | None = None
    top: tuple[Top, ...] = ()
    of_prompt: bool = False


@dataclass(slots=True)
class Step:
    """The choice of a search from one run, or the `error` that it failed with.

    Row `row` continues the cache of row `parents[row]`, which is `row` itself if nothing moved. `emitted` has the
    tokens that are final now, in order. If there are `completions`, the search is over.

    The picker adds `argmax`, the best id of the search's row, if the search has one row and needs no scores. It also
    adds `accepted`, the number of tokens of the run's draft that were chosen, and emitted, before the last choice.
    """

    parents: tuple[int, ...] = ()
    emitted: tuple[Event, ...] = ()
    completions: tuple[Event, ...] = ()
    error: EngineError | None = None
    argmax: int | None = None
    accepted: int = 0


def _refuse_contradictions(settings: Settings) -> None:
    if settings.min_tokens > settings.max_tokens:
        raise InvalidRequest("min_tokens", settings.min_tokens, f"from 0 to max_tokens, which is {settings.max_tokens}")
    beams, returned = settings.num_beams, settings.num_return_sequences
    if beams > 1 and settings.do_sample:
        raise InvalidRequest("do_sample", True, "false, or num_beams must be 1")
    if 1 < beams < returned:
        raise InvalidRequest("num_return_sequences", returned, f"from 1 to num_beams, which is {beams}")
    if beams == 1 and returned > 1 and not settings.do_sample:
        raise InvalidRequest("num_return_sequences", returned, "1, or do_sample must be true, or num_beams as many")
    if settings.top_log_probs and (beams > 1 or not settings.log_probs):
        raise InvalidRequest("top_log_probs", settings.top_log_probs, "0 with beams and without log_probs")
    for name in ("forced_bos_id", "forced_eos_id"):
        if getattr(settings, name) in settings.suppress_ids:
            raise InvalidRequest(name, getattr(settings, name), "an id that suppress_ids does not hold")


def check(request: Request, spec: EngineSpec, slots: int) -> None:
    """Refuse a request that can never run, whatever else waits or runs.

    Raises InvalidRequest for a request that the model can't take, DoesNotFit for one that needs more than the engine
    has.
    """
    settings = request.settings
    _check_scored(request, spec)
    if spec.has_encoder and not settings.decoder_prompt:
        raise InvalidRequest("decoder_prompt", (), "the ids that the model's decoder starts with")
    if not spec.has_encoder and settings.decoder_prompt:
        raise InvalidRequest("decoder_prompt", settings.decoder_prompt, "empty, as the model has no encoder")
    for name, ids in _all_ids(request):
        if ids and max(ids) >= spec.vocab_size:
            raise InvalidRequest(name, max(ids), f"made of ids from 0 to {spec.vocab_size - 1}")
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


def _check_scored(request: Request, spec: EngineSpec) -> None:
    alternatives = request.settings.prompt_log_probs
    if alternatives is None:
        return
    if spec.has_encoder:
        raise InvalidRequest("prompt_log_probs", alternatives, "left out, as the model's encoder reads the prompt")
    values = len(request.prompt) * (1 + alternatives)
    if values > MOST_SCORED:
        fix = "Shorten the prompt, or ask for fewer alternatives"
        raise DoesNotFit("log-probabilities of its prompt", values, MOST_SCORED, fix)


def _all_ids(request: Request) -> Iterable[tuple[str, Ids]]:
    settings = request.settings
    yield "prompt", request.prompt
    for name in ("eos_ids", "decoder_prompt", "suppress_ids", "begin_suppress_ids"):
        yield name, getattr(settings, name)
    yield "logit_bias", tuple(logit_biases(settings.logit_bias))
    for name in ("bad_words_ids", "stop_sequences"):
        yield name, tuple(one for sequence in getattr(settings, name) for one in sequence)
    for name in ("forced_bos_id", "forced_eos_id"):
        value = getattr(settings, name)
        yield name, () if value is None else (value,)
