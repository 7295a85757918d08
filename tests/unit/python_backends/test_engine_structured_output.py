"""Structured output: searches choose as transformers' `generate` does with the same mask, and answers match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hfx.python_backends.engine.generation_settings import Texts
from hfx.python_backends.engine.jobs import new_searches
from hfx.python_backends.engine.request import Event, Settings
from tests.rigs.checkpoints.torch_decoding import (
    END,
    FAMILIES,
    OTHER_END,
    TorchModel,
    drive,
    one_step,
    pad_id,
    request,
    torch_model,
)
from tests.rigs.engine import random_grammars

pytestmark = pytest.mark.slow

CASES = 12
ERASED = -1e6


def forced(settings: Settings, prompt: tuple[int, ...]) -> int:
    """Return the number of forced tokens at the beginning, which are not part of the structured output."""
    return int(len(settings.decoder_prompt or prompt) == 1 and settings.forced_bos_id is not None)


def mask_of(settings: Settings, prompt: tuple[int, ...], form: dict[str, Any]) -> Callable[[int, Any], list[int]]:
    """Return transformers' prefix_allowed_tokens_fn for the structured output `form`."""
    allowed = random_grammars.new_mask(Texts(**form), settings.eos_ids)
    start = len(settings.decoder_prompt or prompt) + forced(settings, prompt)
    return lambda _, ids: allowed(ids.tolist()[start:])


def random_settings(model: TorchModel, random: np.random.Generator, **fixed: Any) -> Settings:
    """Return random settings that a structured output allows."""

    def one_of(*values: Any) -> Any:
        return values[random.integers(len(values))]

    drawn = {
        "max_tokens": one_of(1, 3, 12, 25, 40),
        "repetition_penalty": one_of(1.0, 1.0, 1.3),
        "eos_ids": one_of((END,), (END, OTHER_END)),
        "decoder_prompt": model.start,
        "forced_bos_id": one_of(None, None, 13),
        "forced_eos_id": one_of(None, None, END),
    }
    return Settings(**{**drawn, **fixed})


def asked(settings: Settings, form: dict[str, Any]) -> Settings:
    return replace(settings, new_matcher=random_grammars.compiler(settings.eos_ids).compile(Texts(**form)))


def answers(model: TorchModel, prompt: tuple[int, ...], settings: Settings) -> tuple[Event, ...]:
    return drive(new_searches(request(prompt, settings))[0], model, prompt)[1]


def check(form: dict[str, Any], answer: Event, settings: Settings, prompt: tuple[int, ...]) -> None:
    """Check that an answer that ends by itself matches the structured output."""
    if answer.finish_reason == "stop":
        random_grammars.check(form, random_grammars.text_of(answer.ids[forced(settings, prompt) :]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cases", [range(CASES), pytest.param(range(CASES, 50 * CASES), marks=pytest.mark.full)])
def test_greedy_ids_equal_transformers_with_the_same_mask(family: str, cases: range) -> None:
    model, random, seen = torch_model(family), np.random.default_rng(cases.start), Counter[str]()
    for case in cases:
        form, prompt = random_grammars.random_structure(case, bounded=case % 4 > 0), model.prompt(case)
        settings = random_settings(model, random)
        expected = model.generate(prompt, settings, prefix_allowed_tokens_fn=mask_of(settings, prompt, form))
        (found,) = answers(model, prompt, asked(settings, form))
        assert list(found.ids) == expected.new_ids[0], (form, settings)
        check(form, found, settings, prompt)
        seen[str(found.finish_reason)] += 1
    assert seen["stop"] > len(cases) / 4, seen


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cases", [range(CASES), pytest.param(range(CASES, 20 * CASES), marks=pytest.mark.full)])
def test_beams_equal_transformers_with_the_same_mask(family: str, cases: range) -> None:
    model, random, seen = torch_model(family), np.random.default_rng(cases.start), Counter[str]()
    for case in cases:
        form, prompt = random_grammars.random_structure(1000 + case, bounded=case % 4 > 0), model.prompt(case)
        beams = int(random.integers(2, 6))
        endings = {"early_stopping": (False, True, "never")[case % 3], "length_penalty": (1.0, 0.0, 2.0)[case % 3]}
        returned = int(random.integers(1, beams + 1))
        settings = random_settings(model, random, num_beams=beams, num_return_sequences=returned, **endings)
        expected = model.generate(prompt, settings, prefix_allowed_tokens_fn=mask_of(settings, prompt, form))
        found = answers(model, prompt, asked(settings, form))
        # Beams that never spoke have erased scores, all equal; torch.topk does not say which of equals it takes. If it
        # takes those that end (it does with AVX2), transformers' search ends before that of the engine.
        pairs = zip(found, expected.sequences_scores, strict=True)
        known = [place for place, (own, other) in enumerate(pairs) if min(own.score or 0, other) > ERASED]
        length = len(expected.new_ids[0])
        fill = pad_id(settings) or settings.eos_ids[0]
        ids = [[*found[place].ids, *[fill] * (length - len(found[place].ids))] for place in known]
        assert ids == [expected.new_ids[place] for place in known], (form, settings)
        scores = [found[place].score for place in known]
        np.testing.assert_allclose(scores, expected.sequences_scores[known], rtol=1e-5, err_msg=str(settings))
        for place in known:
            check(form, found[place], settings, prompt)
            seen[str(found[place].finish_reason)] += 1
    assert seen["stop"] > len(cases) / 4, seen


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cases", [range(CASES), pytest.param(range(CASES, 75 * CASES), marks=pytest.mark.full)])
def test_sampled_answers_match_their_structured_output(family: str, cases: range) -> None:
    model, random, seen = torch_model(family), np.random.default_rng(cases.start), Counter[str]()
    for case in cases:
        form, prompt = random_grammars.random_structure(2000 + case, bounded=case % 4 > 0), model.prompt(case)
        sampling = {"do_sample": True, "seed": case, "top_k": (0, 5, 50)[case % 3], "top_p": (1.0, 0.8)[case % 2]}
        settings = random_settings(model, random, temperature=(0.7, 3.0)[case % 2], **sampling)
        (found,) = answers(model, prompt, asked(settings, form))
        check(form, found, settings, prompt)
        seen[str(found.finish_reason)] += 1
    assert seen["stop"] > len(cases) / 4, seen


WAYS: tuple[dict[str, Any], ...] = (
    {},
    *(
        {"do_sample": True, **each}
        for each in ({}, {"top_k": 0}, {"top_k": 7, "top_p": 0.8}, {"top_k": 0, "top_p": 0.7})
    ),
    *({"do_sample": True, "typical_p": 0.6, "top_k": top_k, "temperature": 3.0} for top_k in (0, 50, 1200)),
    *({"do_sample": True, "epsilon_cutoff": 0.05, "top_k": top_k, "min_p": 0.01} for top_k in (0, 50)),
)


@pytest.mark.parametrize("settings", WAYS, ids=str)
def test_choosing_among_few_tokens_equals_choosing_by_all_scores(settings: dict[str, Any]) -> None:
    random, size, several = np.random.default_rng(5), 1300, 0
    for case in range(60):
        matchers = random_grammars.compiler((END,), size).compile(
            Texts(**random_grammars.random_structure(3000 + case))
        )
        chosen = Settings(max_tokens=40, eos_ids=(END,), seed=case, new_matcher=matchers, **settings)
        (by_few,), (by_scores,) = (new_searches(request((9,), chosen)) for _ in range(2))
        over = False
        while not over:
            logits = random.normal(0, 3, (1, size)).astype(np.float32)
            token = by_few.allowed_token(int(logits.argmax()), logits[0])
            step = one_step(by_scores, logits)
            assert [event.ids for event in step.emitted] == [(token,)]
            by_few.choose(None, np.array([[token]]))
            over, several = bool(step.completions), several + (token not in (END, int(logits.argmax())))
    assert several > 100


def walk(form: dict[str, Any], walks: int, random: np.random.Generator) -> Any:
    """Follow random token paths, check each mask against a newly made one, and return the maker of matchers."""
    new, allowed = (
        random_grammars.compiler((END,)).compile(Texts(**form)),
        random_grammars.new_mask(Texts(**form), (END,)),
    )
    assert new is not None
    for number in range(walks):
        matcher, tokens = new(), list[int]()
        for _ in range(10):
            may, some = allowed(tokens), int(random.integers(random_grammars.VOCABULARY))
            assert matcher.allows(some) == (some in may)
            row = np.zeros(random_grammars.VOCABULARY, np.float32)
            other = matcher.copy()
            other.forbid(row)
            assert np.flatnonzero(row == 0).tolist() == other.few().tolist() == may
            token = some if number % 9 == 0 else int(random.choice(may))
            matcher = (matcher, other)[number % 2]
            matcher.take(token)
            tokens.append(token)
    return new


def test_the_allowed_tokens_depend_on_the_text_alone() -> None:
    random = np.random.default_rng(6)
    for case in range(30):
        walk(random_grammars.random_structure(4000 + case, bounded=case % 4 > 0), 10, random)


def test_the_allowed_tokens_are_the_same_when_the_mask_cache_is_full() -> None:
    new = walk({"regex": "[a-f]{1,9}(12|ab)*-?"}, 400, np.random.default_rng(7))
    assert new.__self__.room <= 0
