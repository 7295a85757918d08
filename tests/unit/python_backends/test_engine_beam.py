"""Beam search gives the ids, order and scores of transformers' `generate`, for every setting."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hfx.python_backends.engine.jobs import new_searches
from hfx.python_backends.engine.request import Event, Settings
from tests.rigs.checkpoints.torch_decoding import (
    END,
    FAMILIES,
    TorchModel,
    drive,
    one_step,
    pad_id,
    random_settings,
    request,
    torch_model,
)

pytestmark = pytest.mark.slow

CASES = 24
ERASED = -1e6


def padded(ids: tuple[int, ...], settings: Settings, length: int) -> list[int]:
    """Return `ids` padded as transformers pads them."""
    fill = (pad_id(settings) or settings.eos_ids[0]) if settings.eos_ids else -1
    return [*ids, *[fill] * (length - len(ids))]


def answer(model: TorchModel, prompt: tuple[int, ...], settings: Settings) -> tuple[Event, ...]:
    return drive(new_searches(request(prompt, settings))[0], model, prompt)[1]


@pytest.mark.parametrize(("family", "renormalize"), [*((family, False) for family in FAMILIES), ("bart", True)])
def test_ids_and_scores_equal_transformers_for_random_settings(family: str, renormalize: bool) -> None:
    model, random = torch_model(family), np.random.default_rng(1)
    seen: Counter[str] = Counter()
    for case in range(CASES):
        beams = int(random.integers(2, 6))
        returned = int(random.integers(1, beams + 1))
        fixed = {"num_beams": beams, "num_return_sequences": returned, "renormalize_logits": renormalize}
        settings = random_settings(model, random, **fixed)
        prompt = model.prompt(case)
        expected = model.generate(prompt, settings)
        completions = answer(model, prompt, settings)
        length = len(expected.new_ids[0])
        scores = [each.score for each in completions]
        # Beams that never spoke have erased scores, all equal; torch.topk does not say which of equals it takes.
        known = [place for place, score in enumerate(scores) if score is not None and score > ERASED]
        ids = [padded(completions[place].ids, settings, length) for place in known]
        assert ids == [expected.new_ids[place] for place in known], (prompt, settings)
        known_scores = [scores[place] for place in known]
        # A score near 0, of a nearly certain text, has the rounding of the log-probabilities that it is a sum of.
        wanted = expected.sequences_scores[known]
        np.testing.assert_allclose(known_scores, wanted, rtol=1e-5, atol=1e-6, err_msg=str(settings))
        assert (expected.sequences_scores > ERASED).nonzero().flatten().tolist() == known
        seen.update(completions[place].finish_reason for place in known)
    assert seen["stop"] > CASES / 3 and seen["length"] > CASES / 3, seen


def test_a_forced_end_has_the_finish_reason_length() -> None:
    model = torch_model("bart")
    settings = Settings(
        max_tokens=3, min_tokens=3, num_beams=2, eos_ids=(END,), decoder_prompt=(END,), forced_eos_id=END
    )
    (completion,) = answer(model, (9, 10), settings)
    assert completion.ids[-1] == END and completion.finish_reason == "length"


def test_cancelled_beams_return_the_tokens_so_far() -> None:
    model = torch_model("gpt2")
    settings = Settings(max_tokens=8, min_tokens=8, num_beams=3, num_return_sequences=2, eos_ids=(END,))
    search = new_searches(request((9, 10), settings))[0]
    assert [each.ids for each in search.cancelled()] == [(), ()]
    one_step(search, model.logits((9, 10), [[9, 10]] * 3))
    first, second = search.cancelled()
    assert len(first.ids) == len(second.ids) == 1
    assert first.finish_reason == "cancelled" and (first.index, second.index) == (0, 1)
