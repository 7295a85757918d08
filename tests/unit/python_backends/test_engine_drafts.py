"""Guessed tokens: a request has the same events as without them, token by token, in fewer runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from hfx.exporter.runtime import weight_levels
from hfx.native import library
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.jobs import LONGEST_PAUSE, SHORTEST, Drafter
from hfx.python_backends.engine.plan import Limits, Run
from hfx.python_backends.engine.request import Event, Request, Settings, Step
from hfx.python_backends.engine.spec import NATIVE, ONNXRUNTIME
from hfx.python_backends.errors import StepFailed
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.engine import random_grammars
from tests.rigs.engine.watched_engine import accept, finish, make_core, open_engine, plans_of, random_request
from tests.rigs.machine.processors import HAS_NATIVE

native = pytest.mark.skipif(not HAS_NATIVE, reason="native operators are not built, or don't run here")
LENGTH = 96  # of sources and answers: all memory that is not used is poisoned after each step
FAMILIES = {
    "gpt2": {"n_positions": 256, "bos_token_id": 0, "eos_token_id": 1},
    "llama": {"max_position_embeddings": 256},
    "mistral": {"max_position_embeddings": 256},
    "bart": {"max_position_embeddings": LENGTH},
    "t5-gated": {"num_layers": 2, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
}
LIMITS = Limits(chunk=40)
# What a search does at each token must be done at each of a run's tokens.
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "log-probabilities": {"log_probs": True, "top_log_probs": 3},
    "ends": {"eos_ids": (3, 7, 11), "min_tokens": 4},
    "edited": {"repetition_penalty": 1.1, "no_repeat_ngram_size": 6},
    "penalties": {"frequency_penalty": 0.02, "presence_penalty": -0.1, "logit_bias": {40: 0.5}},
    "edited at times": {"no_repeat_ngram_size": 6},  # the argmax is enough until a sequence repeats itself
    "forced": {"forced_eos_id": 5, "forced_bos_id": 9},
    "a form": {"new_matcher": random_grammars.some_ids(120, (3,)), "eos_ids": (3,)},
    "sampled": {"do_sample": True, "top_k": 3, "temperature": 0.3, "seed": 4},
    "sampled from all": {"do_sample": True, "top_k": 0, "top_p": 0.9, "temperature": 0.2, "seed": 5, "log_probs": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function of the family that returns an int8 engine folder; its random weights often repeat themselves."""

    @cache
    def write(family: str) -> Path:
        import torch

        torch.manual_seed(3)
        made = tiny_generators.build(family, **FAMILIES[family])
        with torch.no_grad():
            for weights in made.parameters():
                if weights.ndim == 2 and family not in tiny_generators.DECODERS:
                    weights.normal_(0, 0.35)
        made.generation_config.forced_eos_token_id = None
        root = tmp_path_factory.mktemp(family)
        checkpoint = tiny_generators.save(root / "checkpoint", made.eval())
        length = LENGTH if family == "t5-gated" else None  # the others have tables of positions
        write_engine_folder(checkpoint, root / "engine", FORMATS["int8"], weight_levels(), length, library())
        return root / "engine"

    return write


def request(family: str, prompt: tuple[int, ...], **settings: Any) -> Request:
    start = () if family in tiny_generators.DECODERS else (2,)
    return Request(prompt, Settings(**{"max_tokens": 60, "decoder_prompt": start} | settings))


def events(engine: Engine, requests: list[Request]) -> list[list[Event]]:
    return [list(handle) for handle in [engine.submit(each) for each in requests]]


@native
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_events_are_those_without_guesses(family: str, folder: Callable[[str], Path]) -> None:
    rng = random.Random(1)
    phrase = tuple(rng.randrange(12, 100) for _ in range(9))
    requests = [request(family, phrase * 3, **settings) for settings in SETTINGS.values()]
    with open_engine(folder(family), 4, limits=LIMITS, runtime=NATIVE, guesses=False) as plain:
        expected = [events(plain, [each]) for each in requests]
        steps = plain.stats().steps
    with open_engine(folder(family), 4, limits=LIMITS, runtime=NATIVE) as engine:
        for name, each, one in zip(SETTINGS, requests, expected, strict=True):
            assert events(engine, [each]) == one, name
        stats = engine.stats()
    assert 0 < stats.accepted_tokens <= stats.draft_tokens
    assert stats.steps == steps - stats.accepted_tokens
    assert stats.tokens == sum(len(one[0]) for one in expected) - len(expected)  # each ends with an event of the whole


@native
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_groups_of_requests_have_the_same_events_with_and_without_guesses(
    family: str, folder: Callable[[str], Path]
) -> None:
    rng = random.Random(2)
    groups = [
        [random_request(rng, family not in tiny_generators.DECODERS) for _ in range(rng.choice((1, 1, 2, 3)))]
        for _ in range(12)
    ]
    lists = []
    for guesses in (False, True):
        with open_engine(folder(family), 9, limits=LIMITS, runtime=NATIVE, guesses=guesses) as engine:
            lists.append([events(engine, group) for group in groups])
            accepted = engine.stats().accepted_tokens
    assert lists[0] == lists[1]
    assert accepted


@native
@pytest.mark.slow
def test_a_request_beside_another_is_not_guessed_and_goes_on_alone(folder: Callable[[str], Path]) -> None:
    core = make_core(folder("gpt2"), 4, LIMITS, runtime=NATIVE)
    prompt = (20, 30, 40, 50) * 5
    long, short = request("gpt2", prompt), request("gpt2", prompt, max_tokens=3)
    handles = [accept(core, each) for each in (long, short)]
    for job in core.jobs.values():
        job.sequences[0].drafter = Drafter(prompt, 15, job.request.settings.max_tokens)
    finish(core)
    runs = [plan for plan in plans_of(core) if isinstance(plan, Run)]
    assert not any(plan.draft for plan in runs if plan.groups == 2)
    assert any(plan.draft for plan in runs if plan.groups == 1)
    alone = make_core(folder("gpt2"), 4, LIMITS, runtime=NATIVE)
    expected = accept(alone, long)
    finish(alone)
    assert handles[0].result(1) == expected.result(1)


@native
@pytest.mark.slow
def test_cancelling_between_two_runs_leaves_the_tokens_so_far(folder: Callable[[str], Path]) -> None:
    core = make_core(folder("gpt2"), 2, LIMITS, runtime=NATIVE)
    one = request("gpt2", (20, 30, 40, 50) * 5)
    handle = accept(core, one)
    (job,) = core.jobs.values()
    job.sequences[0].drafter = Drafter(one.prompt, 15, 60)
    while not core.counters.accepted_tokens:
        assert core.step(), "no guess was right"
    core.cancel(job)
    (end,) = handle.result(1)
    assert end.finish_reason == "cancelled"
    assert end.ids == tuple(event.ids[0] for event in list(handle)[:-1])
    assert len(end.ids) == core.counters.tokens
    assert core.scheduler.idle


@native
@pytest.mark.slow
def test_engines_on_onnxruntime_do_not_verify_guesses(folder: Callable[[str], Path]) -> None:
    core = make_core(folder("gpt2"), 2, runtime=ONNXRUNTIME)
    assert core.runners[0].partitions[1].verifies is False


@native
@pytest.mark.slow
def test_tokens_before_one_that_fails_are_delivered(folder: Callable[[str], Path]) -> None:
    core = make_core(folder("gpt2"), 2, runtime=NATIVE)
    handle = accept(core, request("gpt2", (1, 2, 3)))
    core.step()
    (job,) = core.jobs.values()
    failure = StepFailed("no token is left", "Allow some")
    picks = {job.sequences[0]: (0,)}
    core.scheduler.remove(job)
    core._publish(picks, [Step(emitted=(Event(0, (7,)),), error=failure, accepted=1)])
    delivered = iter(handle)
    assert [next(delivered).ids for _ in range(2)][1] == (7,)
    with pytest.raises(StepFailed):
        next(delivered)


def drafter(prompt: tuple[int, ...], most: int = 15, max_tokens: int = 100) -> Drafter:
    return Drafter(prompt, most, max_tokens)


def choose(guesses: Drafter, tokens: tuple[int, ...], accepted: int = 0) -> None:
    """Report that `tokens` were chosen, of which the first `accepted` were guessed."""
    guesses.take(tuple(Event(0, (token,)) for token in tokens), accepted)


def test_a_guess_is_what_followed_the_latest_equal_tokens() -> None:
    guesses = drafter((1, 2, 3, 9, 9, 9, 1, 2, 3, 4, 5, 6, 7, 1, 2))
    assert guesses.guess() == ()
    choose(guesses, (3,))
    assert guesses.guess() == (4, 5, 6)


def test_a_guess_that_was_right_is_followed_by_one_of_twice_the_length() -> None:
    guesses = drafter(tuple(range(60)), most=10)
    choose(guesses, (10, 11, 12))
    assert guesses.guess() == (13, 14, 15)
    choose(guesses, (13, 14, 15, 16), accepted=3)
    assert guesses.guess() == tuple(range(17, 23))
    choose(guesses, tuple(range(17, 24)), accepted=6)
    assert guesses.guess() == tuple(range(24, 34))


def test_a_guess_resumes_in_the_same_text_after_a_different_token() -> None:
    guesses = drafter(tuple(range(60)))
    choose(guesses, (10, 11, 12))
    assert guesses.guess() == (13, 14, 15)
    choose(guesses, (13, 99), accepted=1)
    assert guesses.guess() == ()  # it is not known what follows 99
    choose(guesses, (15,))
    assert guesses.guess() == (16, 17, 18)


def test_wrong_guesses_are_made_more_and_more_rarely() -> None:
    guesses = drafter((1, 2, 3), max_tokens=10_000)  # each is possible, and none is accepted
    tried = []
    for step in range(1000):
        choose(guesses, (1, 2, 3))
        if guesses.guess():
            tried.append(step)
    pauses = [second - first - 1 for first, second in pairwise(tried)]
    assert pauses[:3] == [1, 2, 4]
    assert max(pauses) == LONGEST_PAUSE


def test_no_more_is_guessed_than_may_be_written() -> None:
    guesses = drafter(tuple(range(60)), max_tokens=6)
    choose(guesses, (10, 11, 12))
    assert guesses.guess() == (13, 14)
    choose(guesses, (13, 14), accepted=1)
    assert guesses.guess() == ()


def test_a_short_limit_bounds_every_guess() -> None:
    guesses = drafter(tuple(range(60)), most=SHORTEST - 1)
    choose(guesses, (10, 11, 12))
    assert guesses.guess() == (13, 14)
    choose(guesses, (13, 14, 15), accepted=2)
    assert guesses.guess() == (16, 17)
