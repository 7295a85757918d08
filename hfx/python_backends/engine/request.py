"""What is asked of the engine and what it answers: frozen values of token ids, checked when they are made.

Owns the settings' ranges and contradictions; knows nothing of text, models and how a token is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, Union

from .errors import InvalidRequest

FinishReason = Literal["stop", "length", "cancelled"]
EarlyStopping = Union[bool, Literal["never"]]
Ids = tuple[int, ...]

PRIORITIES = range(-10, 11)


@dataclass(frozen=True)
class Settings:
    """How a request is decoded; each field means what it means to transformers' `generate`.

    `max_tokens` and `min_tokens` count new tokens (`max_new_tokens`, `min_new_tokens`). `decoder_prompt` is what an
    encoder-decoder's decoder starts with, and empty for a decoder-only model. `stop_sequences` end a sequence whose
    new tokens end with one of them. `bad_words_at_start`: whether a bad word may begin with the first token of the
    prompt, as in transformers 5, and not in 4.57. `renormalize_logits` changes the scores of beams alone. Values that
    a way of decoding does not read (`temperature` without `do_sample`, `length_penalty` without beams) must be in range
    and are otherwise ignored: they may be a checkpoint's defaults. Lists are taken for tuples. Raises InvalidRequest.
    """

    max_tokens: int = 64
    min_tokens: int = 0
    num_beams: int = 1
    num_return_sequences: int = 1
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    seed: int = 0
    eos_ids: Ids = ()
    pad_id: int = 0
    decoder_prompt: Ids = ()
    forced_bos_id: int | None = None
    forced_eos_id: int | None = None
    suppress_ids: Ids = ()
    begin_suppress_ids: Ids = ()
    bad_words_ids: tuple[Ids, ...] = ()
    bad_words_at_start: bool = True
    renormalize_logits: bool = False
    stop_sequences: tuple[Ids, ...] = ()
    log_probs: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _CHECKS[field.name](field.name, getattr(self, field.name)))
        _refuse_contradictions(self)

    @property
    def rows(self) -> int:
        """Rows that a request with these settings occupies."""
        return max(self.num_beams, self.num_return_sequences)


@dataclass(frozen=True)
class Request:
    """A prompt (an encoder-decoder's source) and how to continue it.

    `deadline` is in seconds of `time.monotonic`; a higher `priority` goes first. Raises InvalidRequest.
    """

    prompt: Ids
    settings: Settings
    id: str = ""
    priority: int = 0
    deadline: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", _ids("prompt", self.prompt))
        if not self.prompt:
            raise InvalidRequest("prompt", self.prompt, "at least one token id")
        if not isinstance(self.id, str):
            raise InvalidRequest("id", self.id, "a text")
        if type(self.priority) is not int or self.priority not in PRIORITIES:
            allowed = f"a whole number from {PRIORITIES[0]} to {PRIORITIES[-1]}"
            raise InvalidRequest("priority", self.priority, allowed)
        if self.deadline is not None and not isinstance(self.deadline, (int, float)):
            raise InvalidRequest("deadline", self.deadline, "seconds of time.monotonic, or none")


@dataclass(frozen=True)
class Token:
    """The next token of sequence `index`; `log_prob` (natural) is the model's own, before any processing."""

    index: int
    id: int
    log_prob: float | None = None


@dataclass(frozen=True)
class Completion:
    """The end of sequence `index`: all its new ids, forced ones and the end token included, without padding.

    `score` is a beam's (the sum of its processed log-probs over length ** length_penalty), `log_probs` are one a token.
    """

    index: int
    ids: Ids
    finish_reason: FinishReason
    score: float | None = None
    log_probs: tuple[float, ...] | None = None


Event = Union[Token, Completion]


def _refuse_contradictions(settings: Settings) -> None:
    if settings.min_tokens > settings.max_tokens:
        raise InvalidRequest("min_tokens", settings.min_tokens, f"0 to max_tokens, which is {settings.max_tokens}")
    beams, returned = settings.num_beams, settings.num_return_sequences
    if beams > 1 and settings.do_sample:
        raise InvalidRequest("do_sample", True, "false where num_beams is more than 1")
    if 1 < beams < returned:
        raise InvalidRequest("num_return_sequences", returned, f"1 to num_beams, which is {beams}")
    if beams == 1 and returned > 1 and not settings.do_sample:
        raise InvalidRequest("num_return_sequences", returned, "1, or more with do_sample or as many num_beams")
    for name in ("forced_bos_id", "forced_eos_id"):
        if getattr(settings, name) in settings.suppress_ids:
            raise InvalidRequest(name, getattr(settings, name), "an id that suppress_ids does not hold")


_Check = Callable[[str, Any], Any]


def _whole(low: int, high: int | None = None) -> _Check:
    allowed = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"

    def check(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
            raise InvalidRequest(name, value, allowed)
        return value

    return check


def _number(low: float, high: float) -> _Check:
    def check(name: str, value: Any) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidRequest(name, value, f"a number from {low:g} to {high:g}")
        return float(value)

    return check


def _temperature(name: str, value: Any) -> float:
    if isinstance(value, (int, float)) and value == 0:
        raise InvalidRequest(name, value, "a number from 0.001 to 100; for the likeliest token, set do_sample to false")
    return float(_number(0.001, 100)(name, value))


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(name, value, "true or false")
    return value


def _early_stopping(name: str, value: Any) -> EarlyStopping:
    if isinstance(value, bool):
        return value
    if value != "never":
        raise InvalidRequest(name, value, "true, false or 'never'")
    return "never"


def _optional_id(name: str, value: Any) -> int | None:
    return None if value is None else int(_whole(0)(name, value))


def _ids(name: str, value: Any) -> Ids:
    ids = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(ids, (list, tuple)) or any(type(one) is not int or one < 0 for one in ids):
        raise InvalidRequest(name, value, "token ids: whole numbers of at least 0")
    return tuple(ids)


def _sequences(name: str, value: Any) -> tuple[Ids, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, (list, tuple)) and each for each in value):
        raise InvalidRequest(name, value, "lists of token ids, none of them empty")
    return tuple(_ids(name, each) for each in value)


# The upper limits of counts keep a request from asking for more than any engine has; those of floats keep float32
# arithmetic finite.
_CHECKS: dict[str, _Check] = {
    "max_tokens": _whole(1),
    "min_tokens": _whole(0),
    "num_beams": _whole(1, 64),
    "num_return_sequences": _whole(1, 64),
    "do_sample": _flag,
    "temperature": _temperature,
    "top_k": _whole(0),
    "top_p": _number(0, 1),
    "min_p": _number(0, 1),
    "repetition_penalty": _number(0.01, 100),
    "no_repeat_ngram_size": _whole(0),
    "length_penalty": _number(-10, 10),
    "early_stopping": _early_stopping,
    "seed": _whole(0, 2**64 - 1),
    "eos_ids": _ids,
    "pad_id": _whole(0),
    "decoder_prompt": _ids,
    "forced_bos_id": _optional_id,
    "forced_eos_id": _optional_id,
    "suppress_ids": _ids,
    "begin_suppress_ids": _ids,
    "bad_words_ids": _sequences,
    "bad_words_at_start": _flag,
    "renormalize_logits": _flag,
    "stop_sequences": _sequences,
    "log_probs": _flag,
}
