"""Scores of pairs: the checkpoint's activation of the logits, or the logits themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hfx.python_backends.errors import InvalidInput
from tests.rigs.checkpoints.encoder_line import postprocessor_for

LOGITS = np.array([[-90.0], [-1.5], [0.0], [8.4]], np.float32)


def test_a_score_is_what_the_activation_makes_of_the_logit(tmp_path: Path) -> None:
    ranking = postprocessor_for(tmp_path, task="text-ranking", activation="sigmoid")
    np.testing.assert_allclose(ranking.answer({"logits": LOGITS})["score"], torch.tensor(LOGITS).sigmoid(), rtol=1e-6)
    plain = postprocessor_for(tmp_path, task="text-ranking", activation="none")
    assert np.array_equal(plain.answer({"logits": LOGITS})["score"], LOGITS)


def test_each_row_has_its_own_raw_scores(tmp_path: Path) -> None:
    ranking = postprocessor_for(tmp_path, task="text-ranking", activation="sigmoid")
    scores = ranking.answer({"logits": LOGITS})["score"]
    raw = np.array([[True], [False], [False], [True]])
    answer = ranking.answer({"logits": LOGITS, "raw_scores": raw})["score"]
    assert np.array_equal(answer, np.where(raw, LOGITS, scores)) and answer.dtype == np.float32
    softmaxed = ranking.answer({"logits": LOGITS[:2].T, "apply_softmax": np.array([[True]])})["score"]
    np.testing.assert_allclose(softmaxed, torch.tensor(LOGITS[:2].T).sigmoid().softmax(-1), rtol=1e-6)
    with pytest.raises(InvalidInput, match="apply_softmax"):
        ranking.answer({"logits": LOGITS, "apply_softmax": raw[:2]})
    with pytest.raises(InvalidInput, match="raw_scores"):
        ranking.answer({"logits": LOGITS, "raw_scores": raw[:2]})
