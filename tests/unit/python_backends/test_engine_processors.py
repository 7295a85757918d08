"""Logits processors give the bits of transformers' processors; greedy decoding equals `generate`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process as theirs

from hfx.python_backends.engine.jobs import new_searches
from hfx.python_backends.engine.processors import Processors
from hfx.python_backends.engine.request import Settings
from tests.rigs.checkpoints.torch_decoding import (
    END,
    FAMILIES,
    OTHER_END,
    PAD,
    OpenAIPenalties,
    drive,
    one_step,
    random_settings,
    request,
    torch_model,
)
from tests.rigs.machine.tiers import since_transformers

VOCABULARY = 12


def their_processors(settings: Settings, start: int) -> LogitsProcessorList:
    """Return the processors that `generate` makes of `settings`, in its order."""
    ends = torch.tensor(settings.eos_ids)
    begin = start + (start == 1 and settings.forced_bos_id is not None)
    return LogitsProcessorList(
        [
            theirs.RepetitionPenaltyLogitsProcessor(settings.repetition_penalty),
            theirs.NoRepeatNGramLogitsProcessor(settings.no_repeat_ngram_size),
            theirs.NoBadWordsLogitsProcessor([list(word) for word in settings.bad_words_ids], ends),
            theirs.MinNewTokensLengthLogitsProcessor(start, settings.min_tokens, ends),
            theirs.SuppressTokensLogitsProcessor(settings.suppress_ids),
            theirs.SuppressTokensAtBeginLogitsProcessor(settings.begin_suppress_ids, begin),
            OpenAIPenalties(settings, start),
        ]
    )


@since_transformers(5, 18)
@pytest.mark.parametrize("penalty", [1.0, 1.3, 0.6])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("openai", [{}, {"frequency_penalty": 0.7}, {"presence_penalty": -1.3, "logit_bias": {"8": 3}}])
def test_edits_equal_transformers_processors_to_the_bit(
    penalty: float, size: int, rows: int, openai: dict[str, Any]
) -> None:
    random = np.random.default_rng(size)
    settings = Settings(
        min_tokens=3,
        repetition_penalty=penalty,
        no_repeat_ngram_size=size,
        eos_ids=(2, 3),
        suppress_ids=(9,),
        begin_suppress_ids=(5, 6),
        bad_words_ids=((2,), (7,), (4, 4), (1, 8), (0, 1, 8), (5, 5, 5, 5)),
        forced_bos_id=1,
        **openai,
    )
    for start in (1, 2, 5):
        ours, expected = Processors(settings, start), their_processors(settings, start)
        for length in range(start, 14):
            histories = random.integers(0, VOCABULARY, (rows, length))
            scores = random.normal(0, 3, (rows, VOCABULARY)).astype(np.float32)
            scores[0, 0] = -np.inf
            wanted = expected(torch.from_numpy(histories), torch.from_numpy(scores.copy())).numpy()
            ours.edits(histories).apply(scores)
            np.testing.assert_array_equal(scores, wanted)


@since_transformers(5, 18)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_transformers_for_random_settings(family: str) -> None:
    model, random = torch_model(family), np.random.default_rng(2)
    reasons = set()
    for case in range(60):
        settings = random_settings(model, random)
        prompt = model.prompt(case)
        emitted, (completion,) = drive(new_searches(request(prompt, settings))[0], model, prompt)
        (expected,) = model.generate(prompt, settings).new_ids
        assert list(completion.ids) == expected, (prompt, settings)
        assert [event.ids[0] for event in emitted] == expected
        reasons.add(completion.finish_reason)
    assert reasons == {"stop", "length"}


def test_only_steps_whose_scores_change_need_the_scores() -> None:
    settings = Settings(max_tokens=5, min_tokens=2, eos_ids=(END,), forced_eos_id=END)
    search = new_searches(request((9,), settings))[0]
    wanted = []
    for token in (20, 21, 22, 23):
        wanted.append(search.candidates)
        logits = np.zeros((1, 60), np.float32)
        logits[0, token] = 9
        step = one_step(search, logits)
    assert wanted == [1, 1, 0, 0]
    assert step.completions[0].ids == (20, 21, 22, 23, END)  # the forced end came with the fourth run
    assert [event.ids[0] for event in step.emitted] == [23, END]


def test_a_forced_first_token_is_part_of_the_prompt_and_of_the_events() -> None:
    settings = Settings(max_tokens=5, decoder_prompt=(END,), forced_bos_id=13, eos_ids=(OTHER_END,))
    search = new_searches(request((9,), settings))[0]
    assert search.prompt == (END, 13)
    assert search.cancelled()[0].ids == ()
    step = search.choose(None, np.array([[20]]))
    assert [event.ids[0] for event in step.emitted] == [13, 20]
    assert list(search.next_inputs()) == [20]


@pytest.mark.parametrize(("token", "reason"), [(PAD, "length"), (END, "stop")])
def test_the_last_token_says_why_a_sequence_is_over(token: int, reason: str) -> None:
    search = new_searches(request((5,), Settings(max_tokens=1, eos_ids=(END,))))[0]
    (completion,) = search.choose(None, np.array([[token]])).completions
    assert completion.finish_reason == reason
