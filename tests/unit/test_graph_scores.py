"""The two graphs without weights: log-softmax and the best k."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hfx.exporter.graph.generator import log_softmax_graph, top_k_graph
from hfx.python_backends.engine.sessions import open_session
from tests.unit.engine_rig import ONE_THREAD

SCORES = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)


def test_log_softmax_is_torchs(tmp_path: Path) -> None:
    import torch

    log_softmax_graph(tmp_path / "log_softmax.onnx", 50)
    (got,) = open_session(tmp_path / "log_softmax.onnx", ONE_THREAD).run(["log_probs"], {"scores": SCORES})
    want = torch.log_softmax(torch.from_numpy(SCORES), -1).numpy()
    assert np.abs(got - want).max() < 1e-6


@pytest.mark.parametrize("k", [1, 7, 50])
def test_the_best_come_first_and_among_equals_the_lowest_id(tmp_path: Path, k: int) -> None:
    top_k_graph(tmp_path / "top_k.onnx")
    equal = np.zeros((2, 50), np.float32)
    equal[1, 25:] = 1
    equal[1, :5] = -np.inf
    scores = np.concatenate([SCORES, equal])
    values, ids = open_session(tmp_path / "top_k.onnx", ONE_THREAD).run(
        ["values", "ids"], {"scores": scores, "k": np.array([k])}
    )
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    assert np.array_equal(ids, order)
    assert np.array_equal(values, np.take_along_axis(scores, order, 1))
