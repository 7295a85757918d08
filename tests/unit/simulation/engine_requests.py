"""Random requests for the model of arithmetic, and what the engine's reference answers to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx.python_backends.engine.jobs import new_searches
from hfx.python_backends.engine.matcher import Floats
from hfx.python_backends.engine.reference import drive, log_softmax, most_probable, one_step
from hfx.python_backends.engine.request import Event, Request, Settings, Step
from hfx.python_backends.engine.search import Search
from hfx.python_backends.errors import EngineError, StepFailed
from tests.unit.simulation.engine_model import BEAMS, MAX_LENGTH, MAX_SOURCE, SCORES, VOCABULARY, next_token

REQUESTS = 400  # different ones: the reference takes longer than the engine
TEXTS = [tuple(Random(number).choices(range(VOCABULARY), k=400)) for number in range(3)]  # whose beginnings are shared
KINDS = ("greedy", "greedy", "greedy", "edited", "beams", "samples", "nucleus", "structured", "scored")


@dataclass(eq=False)
class Expected:
    """The reference's answer: the events of each sequence in order.

    If the request fails by itself, `before_failure` has the number of these events that are delivered first, by
    sequence. `cancelled` has the completions with which each search would end if it was cancelled after each of its
    steps, and `of_prompt` the log-probabilities of the prompt's tokens, if they are wanted.
    """

    events: dict[int, list[Event]] = field(default_factory=dict)
    cancelled: list[list[tuple[Event, ...]]] = field(default_factory=list)
    of_prompt: tuple[Event, ...] = ()
    before_failure: dict[int, int] = field(default_factory=dict)


class Grammar:
    """Structured output: a token may follow if its sum with the one before has a remainder by three.

    After `most` tokens only token 0 may come, or nothing after an odd token if the grammar `is_broken`. The allowed
    tokens count as few if `is_narrow`.
    """

    def __init__(self, most: int, is_narrow: bool, is_broken: bool) -> None:
        self._most, self._is_narrow, self._is_broken = most, is_narrow, is_broken
        self._last = self._taken = 0

    def few(self) -> NDArray[np.int64] | None:
        return self._allowed() if self._is_narrow else None

    def best(self, logits: Floats, argmax: int) -> int:
        allowed = self._allowed()
        return argmax if argmax in allowed else int(allowed[logits[allowed].argmax()])

    def forbid(self, scores: Floats) -> None:
        allowed = self._allowed()
        kept = scores[allowed]
        scores[:] = -np.inf
        scores[allowed] = kept

    def take(self, token: int) -> None:
        self._last, self._taken = token, self._taken + 1

    def copy(self) -> Grammar:
        other = Grammar(self._most, self._is_narrow, self._is_broken)
        other._last, other._taken = self._last, self._taken
        return other

    def _allowed(self) -> NDArray[np.int64]:
        if self._taken < self._most:
            return np.array([token for token in range(VOCABULARY) if (token + self._last) % 3])
        if self._is_broken and self._last % 2:
            raise StepFailed("nothing is allowed")
        return np.array([0])


@cache
def request_of(number: int, has_encoder: bool) -> Request:
    """Return one of REQUESTS requests."""
    random = Random(number)
    kind = random.choice(KINDS)
    most = random.choice((1, 4, 16, 16, 50))
    settings: dict[str, Any] = {"max_tokens": random.randint(1, most), "eos_ids": _tokens(random, 0, 2)}
    if kind == "edited":
        settings |= {"repetition_penalty": 1.5, "presence_penalty": 0.7, "no_repeat_ngram_size": random.choice((0, 2))}
    if kind == "beams":
        beams = random.choice(BEAMS[1:])
        settings |= {"num_beams": beams, "num_return_sequences": random.randint(1, beams)}
        settings |= {"early_stopping": random.choice((True, False, "never"))}
    if kind in ("samples", "nucleus"):
        settings |= {"do_sample": True, "num_return_sequences": random.randint(1, 3), "seed": random.randrange(99)}
        settings |= {"top_k": 0, "top_p": 0.8} if kind == "nucleus" else {"top_k": 5}
    if kind == "structured":
        grammar = random.randint(1, 20), random.random() < 0.5, random.random() < 0.5
        settings |= {"new_matcher": lambda: Grammar(*grammar), "do_sample": random.random() < 0.5}
        settings |= {"num_return_sequences": random.randint(1, 3) if settings["do_sample"] else 1}
        settings["eos_ids"] = (0,)
    if random.random() < 0.2:
        settings |= {"forced_eos_id": 5}
    settings["log_probs"] = random.random() < 0.2
    settings["top_log_probs"] = random.choice((0, 3)) if settings["log_probs"] and kind != "beams" else 0
    if has_encoder:
        settings |= {"decoder_prompt": _tokens(random, 1, 3), "forced_bos_id": random.choice((None, 7))}
    elif kind == "scored":
        settings["prompt_log_probs"] = random.choice((0, 2))
    length = random.choice((random.randint(0, 20), random.randint(0, 20), random.randint(60, 390)))
    prompt = (*random.choice(TEXTS)[:length], *_tokens(random, 0, 3)) or (1,)
    if has_encoder:
        return Request(prompt[:MAX_SOURCE], Settings(**settings))
    settings["max_tokens"] = min(settings["max_tokens"], MAX_LENGTH - len(prompt))  # some fill the cache to its end
    return Request(prompt, Settings(**settings))


@cache
def expected_of(number: int, has_encoder: bool) -> Expected:
    """Return the reference's answer to a request."""
    request = request_of(number, has_encoder)
    source, expected = bytes(request.prompt) if has_encoder else b"", Expected()
    counts: list[list[int]] = []  # events of each search after each of its steps
    failed: list[int] = []  # steps
    for index, search in enumerate(new_searches(request)):
        counts.append([0])
        expected.cancelled.append([search.cancelled()])

        def step_of(search: Search, logits: Floats, index: int = index) -> Step:
            step = one_step(search, logits)
            for event in (*step.emitted, *step.completions):
                expected.events.setdefault(event.index, []).append(event)
            expected.cancelled[index].append(search.cancelled())
            counts[index].append(len(expected.events.get(index, ())))
            return step

        try:
            drive(search, lambda rows: _logits(rows, source), step_of)
        except EngineError:
            failed.append(len(counts[index]))
    if failed:
        expected.before_failure = {index: of[min(*failed, len(of) - 1)] for index, of in enumerate(counts)}
    if request.settings.prompt_log_probs is not None:
        expected.of_prompt = _of_prompt(request.prompt, request.settings.prompt_log_probs)
    return expected


def _logits(rows: Sequence[Sequence[int]], source: bytes) -> Floats:
    logits: Floats = SCORES[[next_token(bytes(row), source) for row in rows]]
    return logits


def _of_prompt(prompt: Sequence[int], count: int) -> tuple[Event, ...]:
    events = [Event(0, (prompt[0],), log_probs=(0.0,), top=((),), of_prompt=True)]
    for at, token in enumerate(prompt[1:], 1):
        logits = _logits([prompt[:at]], b"")
        log_prob = float(log_softmax(logits)[0, token])
        events.append(Event(0, (token,), log_probs=(log_prob,), top=(most_probable(logits, count),), of_prompt=True))
    return tuple(events)


def _tokens(random: Random, low: int, high: int) -> tuple[int, ...]:
    return tuple(random.choices(range(VOCABULARY), k=random.randint(low, high)))
