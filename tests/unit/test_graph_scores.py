"""The two graphs without weights: log-softmax and the best k."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hfx.exporter.graph.generator import log_softmax_graph, top_k_graph
from tests.unit.graph_driver import open_session

SCORES = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)


def test_log_softmax_is_torchs(tmp_path: Path) -> None:
    import torch

    log_softmax_graph(tmp_path / "log_softmax.onnx", 50)
    (got,) = open_session(tmp_path / "log_softmax.onnx").run(["log_probs"], {"scores": SCORES})
    want = torch.log_softmax(torch.from_numpy(SCORES), -1).numpy()
    assert np.abs(got - want).max() < 1e-6


@pytest.mark.parametrize("k", [1, 7, 50])
def test_the_best_come_first(tmp_path: Path, k: int) -> None:
    top_k_graph(tmp_path / "top_k.onnx")
    values, ids = open_session(tmp_path / "top_k.onnx").run(["values", "ids"], {"scores": SCORES, "k": np.array([k])})
    order = np.argsort(-SCORES, kind="stable")[:, :k]
    assert np.array_equal(ids, order)
    assert np.array_equal(values, np.take_along_axis(SCORES, order, 1))


@pytest.mark.parametrize("k", [1, 3, 20])
def test_the_lowest_id_comes_first_among_equals(tmp_path: Path, k: int) -> None:
    top_k_graph(tmp_path / "top_k.onnx")
    scores = np.zeros((2, 1000), np.float32)
    scores[1, 500:] = 1
    scores[1, :5] = -np.inf
    _, ids = open_session(tmp_path / "top_k.onnx").run(["values", "ids"], {"scores": scores, "k": np.array([k])})
    assert ids.tolist() == [list(range(k)), list(range(500, 500 + k))]
