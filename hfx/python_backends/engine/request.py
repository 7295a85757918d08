"""What is asked of the engine and what it answers: frozen values of token ids, checked when they are made.

The settings with their ranges and defaults are in generation_settings.py; here are their contradictions. Between a
request and its events is a search, which knows one sequence (or one set of beams) and its scores; it knows nothing of
slots, caches, other searches and runtimes. The engine runs the model, calls `edit` and `choose`, and feeds what `feed`
says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..checks import Ids, boolean, integer, optional, token_id, token_ids, token_sequences
from ..errors import DoesNotFit, EngineError, InvalidRequest, StepFailed
from .generation_settings import BEAMS, MOST_ALTERNATIVES, ROW, Decoding, setting
from .spec import EngineSpec

FinishReason = Literal["stop", "length", "cancelled"]
Top = tuple[tuple[int, float], ...]  # ids of most probable tokens and their log-probabilities, best first
Floats = NDArray[np.float32]

# `candidates` of a search that must see every score of its row.
WHOLE_ROW = -1


@dataclass(frozen=True)
class Settings(Decoding):
    """How a request is decoded: the table's settings, and token ids.

    `max_tokens` and `min_tokens` count new tokens (`max_new_tokens`, `min_new_tokens`). Values that a way of decoding
    does not read (`temperature` without `do_sample`, `length_penalty` without beams) must be in range and are otherwise
    ignored: they may be a checkpoint's defaults. Lists are taken for tuples. Raises InvalidRequest.
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
    top_log_probs: int = setting(
        0, "", integer(0, MOST_ALTERNATIVES), "of so many most probable tokens in each place, too; not with beams"
    )

    def __post_init__(self) -> None:
        for each in fields(Settings):  # a subclass checks its own
            check = each.metadata[ROW].check
            object.__setattr__(self, each.name, check(each.name, getattr(self, each.name)))
        _refuse_contradictions(self)

    @property
    def rows(self) -> int:
        """Rows that a request with these settings occupies."""
        return max(self.num_beams, self.num_return_sequences)


@dataclass(frozen=True)
class Request:
    """A prompt (an encoder-decoder's source) and how to continue it.

    `deadline` is in seconds of `time.monotonic`; `document` is a number that the parts of a document share, 0 for other
    prompts. `truncated_tokens` are those of the caller's text that `prompt` lacks, which the engine does not read.
    Raises InvalidRequest.
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
    """The next token of sequence `index` or, with a `finish_reason`, its end.

    The end has all new `ids` of the sequence: forced ones and the end token included, without padding. `score` is a
    beam's (the sum of its processed log-probs over length ** length_penalty). `log_probs`, where they are wanted, are
    one for each of `ids`: natural ones, the model's own, before any processing. `top` are the most probable tokens in
    the place of each of `ids`, where Settings.top_log_probs wants some.
    """

    index: int
    ids: Ids
    finish_reason: FinishReason | None = None
    score: float | None = None
    log_probs: tuple[float, ...] | None = None
    top: tuple[Top, ...] = ()


@dataclass(frozen=True)
class Step:
    """What a search chose from one run, or the `error` that it failed with.

    `parents[row]` is the row whose cache row `row` continues (its own number where nothing moved); `emitted` are the
    tokens that are final now, in order; `completions`, where there are any, say that the search is over.

    The picker adds `argmax`, the best id of the search's row, where it has one row and needs no scores, and how many
    tokens of the run's draft were chosen, and emitted, before the last choice (`accepted`).
    """

    parents: tuple[int, ...] = ()
    emitted: tuple[Event, ...] = ()
    completions: tuple[Event, ...] = ()
    error: EngineError | None = None
    argmax: int | None = None
    accepted: int = 0


def check_best(score: float) -> None:
    """Refuse to choose where even the best score of a step is minus infinity, or is not a number. Raises StepFailed."""
    if not float("-inf") < score < float("inf"):
        raise StepFailed(
            f"the best score of the next token is {score}: no token is left to choose",
            "Check that suppress_ids, bad_words_ids and no_repeat_ngram_size leave some, and that the model is sound",
        )


class Search(Protocol):
    """How one sequence, or one set of beams, is continued.

    A step of the engine: run the model; where `candidates` is not 0, copy the rows' logits (log-softmaxed where
    `uses_log_probs`) to a scratch, call `edit` on it, and take the best of it; then call `choose`. `candidates`
    and `forced` are read at each step; what follows never changes. The search occupies `rows` rows from its first
    choice to its last: 1, or the number of beams. `prompt` is what the decoder is fed with, in every row, before the
    first choice; a forced first token is part of it unless its log-probability is wanted, which takes a run.
    `wants_log_probs`: whether `choose` needs its `log_probs`; `top_count`: how many tokens its `top` has.
    """

    rows: int
    prompt: Ids
    uses_log_probs: bool
    wants_log_probs: bool
    top_count: int

    @property
    def candidates(self) -> int:
        """Best scores a row that `choose` needs at this step.

        0: the row's argmax is enough and `edit` is not called; WHOLE_ROW: the edited row itself. It may exceed the
        vocabulary: then the vocabulary is enough.
        """

    @property
    def forced(self) -> int | None:
        """The token that this step must choose, if it must; `candidates` is 0 then."""

    def feed(self) -> Sequence[int]:
        """The token that each row is fed with at the next step."""

    def edit(self, scores: Floats) -> None:
        """Apply the settings' processors to `scores` [rows, vocabulary], in place."""

    def choose(
        self,
        values: Floats | None,
        ids: NDArray[np.int64] | None,
        log_probs: Floats | None = None,
        top: Top = (),
    ) -> Step:
        """Choose the next token of each row, and every token after it that is forced and whose log-prob none wants.

        `values`, `ids`: [rows, k], best first, lowest id first where scores are equal; k is `candidates` or more.
        With 0 candidates `values` is None and `ids` [rows, 1] the argmax, or `forced` where that is one; with
        WHOLE_ROW `values` is the edited row [rows, vocabulary] in the vocabulary's order and `ids` None. `log_probs`:
        where wanted, log-softmax of the *unedited* logits at `ids` (with WHOLE_ROW: at every id), of the same shape;
        `top` are the `top_count` most probable tokens of these logits. Nothing of the arrays is kept.
        Raises StepFailed if no token is left to choose; only this search is concerned then.
        """

    def cancelled(self) -> tuple[Event, ...]:
        """The completions if the search ends now, for a reason that is not its own."""


def log_probs_at(logits: Floats, ids: NDArray[np.int64] | None) -> Floats:
    """log-softmax of `logits` [rows, vocabulary] at `ids` [rows, k], or at every id: `choose`'s log_probs."""
    highest = logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))
    picked = logits if ids is None else np.take_along_axis(logits, ids, axis=1)
    log_probs: Floats = (picked - highest) - total
    return log_probs


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
    if settings.top_log_probs and (beams > 1 or not settings.log_probs):
        raise InvalidRequest("top_log_probs", settings.top_log_probs, "0 with beams, and without log_probs")
    for name in ("forced_bos_id", "forced_eos_id"):
        if getattr(settings, name) in settings.suppress_ids:
            raise InvalidRequest(name, getattr(settings, name), "an id that suppress_ids does not hold")


def check(request: Request, spec: EngineSpec, slots: int) -> None:
    """Refuse what can't ever run, whatever else waits or runs.

    Raises InvalidRequest for what the model can't take, DoesNotFit for what is more than the engine has.
    """
    settings = request.settings
    if spec.has_encoder and not settings.decoder_prompt:
        raise InvalidRequest("decoder_prompt", (), "the ids that the model's decoder starts with")
    if not spec.has_encoder and settings.decoder_prompt:
        raise InvalidRequest("decoder_prompt", settings.decoder_prompt, "none, as the model has no encoder")
    for name, ids in _all_ids(request):
        if ids and max(ids) >= spec.vocab_size:
            raise InvalidRequest(name, max(ids), f"ids from 0 to {spec.vocab_size - 1}")
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
