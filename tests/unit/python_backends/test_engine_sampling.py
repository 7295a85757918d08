"""Sampling draws from transformers' distribution, with random numbers that belong to the request alone."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import GenerationMixin

from hfx.python_backends.engine.generation_settings import SAMPLING, of_scope
from hfx.python_backends.engine.jobs import new_searches
from hfx.python_backends.engine.reference import best
from hfx.python_backends.engine.request import Settings
from hfx.python_backends.engine.sampling import position, position_in_row, uniform, weights_of_best, weights_of_row
from hfx.python_backends.engine.search import WHOLE_ROW
from hfx.python_backends.errors import StepFailed
from tests.rigs.checkpoints.torch_decoding import END, drive, one_step, request, torch_model

VOCABULARY = 1300
GRID = [
    {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    for temperature, top_k, top_p, min_p in product(
        (1.0, 0.4, 1.7), (0, 1, 5, 40), (1.0, 0.9, 0.3, 0.0), (0, 0.05, 0.6)
    )
]
LARGE = [{"top_k": top_k, "top_p": 0.95} for top_k in (1024, 1025, 1299, 5000)]  # some are taken from the whole row

TYPICAL = [
    {"typical_p": typical_p, **others}
    for typical_p, others in product(
        (0.001, 0.2, 0.9), ({}, {"top_k": 0}, {"top_k": 0, "temperature": 0.4}, *GRID[-9:])
    )
]
EPSILON = [
    {"epsilon_cutoff": epsilon, **others}
    for epsilon, others in product(
        (1e-4, 0.01, 0.3), ({}, {"top_k": 0}, {"top_k": 0, "typical_p": 0.5, "temperature": 0.4}, *GRID[-9:])
    )
]


def their_probabilities(logits: np.ndarray, settings: Settings) -> np.ndarray:
    """Return the distribution that `generate` draws from, by its own warpers in its order."""
    config = GenerationConfig(do_sample=True, **{name: getattr(settings, name) for name in of_scope(SAMPLING)})
    warpers = GenerationMixin()._get_logits_processor(config)
    return torch.softmax(warpers(None, torch.from_numpy(logits.copy())), -1)[0].numpy()


def our_probabilities(logits: np.ndarray, settings: Settings) -> np.ndarray:
    """Return the distribution that a search draws from, over the whole vocabulary."""
    search = new_searches(request((9,), settings))[0]
    probabilities = np.zeros(logits.shape[1])
    columns: Any
    if search.candidates == WHOLE_ROW:
        columns, weights = weights_of_row(logits[0], settings)
        columns = slice(None) if columns is None else columns
    else:
        values, ids = best(logits, search.candidates)
        weights = weights_of_best(values[0], settings)
        columns = ids[0, : len(weights)]
    probabilities[columns] = weights / weights.sum(dtype=np.float64)
    return probabilities


def sampled(**fixed: Any) -> Settings:
    return Settings(**{"do_sample": True, "max_tokens": 12, "eos_ids": (END,), **fixed})


@pytest.mark.parametrize("fixed", GRID + LARGE + TYPICAL + EPSILON, ids=str)
def test_the_distribution_is_transformers(fixed: dict[str, Any]) -> None:
    settings = sampled(**fixed)
    random = np.random.default_rng(3)
    for spread in (0.5, 3.0):
        logits = random.normal(0, spread, (1, VOCABULARY)).astype(np.float32)
        logits[0, random.integers(0, VOCABULARY, 50)] = -np.inf
        expected, ours = their_probabilities(logits, settings), our_probabilities(logits, settings)
        np.testing.assert_array_equal(ours > 0, expected > 0)
        np.testing.assert_allclose(ours, expected, rtol=2e-5)


@pytest.mark.parametrize("top_k", [0, 8])
def test_draws_follow_the_distribution(top_k: int) -> None:
    from scipy import stats

    logits = np.random.default_rng(5).normal(0, 1, (1, 600)).astype(np.float32)
    logits[0, 40:] -= 4
    settings = sampled(top_k=top_k, max_tokens=4000, eos_ids=())
    search = new_searches(request((9,), settings))[0]
    drawn = [one_step(search, logits).emitted[0].ids[0] for _ in range(4000)]
    probabilities = our_probabilities(logits, settings)
    expected = probabilities / probabilities.sum() * len(drawn)
    often = expected >= 5
    counts = np.bincount(drawn, minlength=600)
    observed = np.append(counts[often], counts[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    filled = wanted > 0
    assert observed[~filled].sum() == 0
    assert stats.chisquare(observed[filled], wanted[filled]).pvalue > 1e-3


def test_numbers_are_uniform_and_each_place_has_its_own() -> None:
    from scipy import stats

    streams = [
        [uniform(np.array([seed, index], np.uint64), i) for i in range(2000)]
        for seed, index in ((0, 0), (0, 1), (1, 0))
    ]
    assert len({number for stream in streams for number in stream}) == 6000
    for stream in streams:
        assert stats.kstest(stream, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(streams)[np.triu_indices(3, 1)]).max() < 0.1


def test_numbers_stay_the_same_in_every_release() -> None:
    assert uniform(np.array([7, 1], np.uint64), 3) == 0.0931189622036861


def test_the_end_of_the_distribution_is_reached_but_not_passed() -> None:
    weights = np.array([0.0, 3.0, 1.0, 0.0], np.float32)
    almost_one = 1 - 2.0**-53
    assert [position(weights, number) for number in (0.0, 0.74, 0.76, almost_one, 1.0)] == [1, 1, 2, 2, 2]
    row = np.zeros(1300, np.float32)
    row[[3, 700, 701]] = 1
    assert [position_in_row(row, number) for number in (0.0, 0.3, 0.5, 0.7, almost_one)] == [3, 3, 700, 701, 701]


def test_returned_sequences_differ_and_each_is_the_same_whatever_their_number() -> None:
    model = torch_model("bart")
    two, four = (sampled(num_return_sequences=n, decoder_prompt=model.start, seed=5, top_k=0) for n in (2, 4))
    assert (len(new_searches(request((9, 8), two))), four.rows) == (2, 4)
    of_two = [drive(new_searches(request((9, 8), two))[i], model, (9, 8))[1][0] for i in range(2)]
    of_four = [drive(new_searches(request((9, 8), four))[i], model, (9, 8))[1][0] for i in range(4)]
    assert of_four[:2] == of_two and [each.index for each in of_four] == [0, 1, 2, 3]
    assert len({each.ids for each in of_four}) > 1


@pytest.mark.parametrize("value", [-np.inf, np.nan, np.inf])
@pytest.mark.parametrize(
    "settings",
    [
        sampled(top_k=0),
        sampled(top_k=5),
        Settings(suppress_ids=(3,)),
        Settings(num_beams=2, decoder_prompt=(0,)),
    ],
)
def test_scores_that_leave_no_choice_fail_this_search(settings: Settings, value: float) -> None:
    search = new_searches(request((9,), settings))[0]
    logits = np.full((search.rows, 60), value, np.float32)
    if settings.do_sample and np.isnan(value):  # one is enough
        logits = np.array([[0, 0, 0, value, 0]], np.float32)
    with pytest.raises(StepFailed, match="no token is left"):
        one_step(search, logits)
