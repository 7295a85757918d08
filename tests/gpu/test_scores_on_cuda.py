"""The best scores that CUDA finds are those of the host, and its runs are captured."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from hfx.python_backends.engine.device_memory import Copier, Device
from hfx.python_backends.engine.placement import Cuda
from hfx.python_backends.engine.scores import DeviceScores, HostScores
from hfx.python_backends.engine.sessions import SessionSettings
from tests.rigs.engine.watched_engine import ONE_THREAD
from tests.rigs.machine.gpus import needs_cuda
from tests.unit.python_backends.test_engine_scores import Picks, outputs_of, random_batch, uploaded, written

pytestmark = [pytest.mark.slow, needs_cuda]

CLOSE = 1e-4  # scores that are nearer may change places, because CUDA rounds a log-softmax in another way


def assert_close(scores: DeviceScores, device: Device, host: HostScores, logits: np.ndarray, picks: Picks) -> None:
    on_host, on_device = host.best(outputs_of(logits), picks), scores.best(uploaded(device, logits), picks)
    for sequence, wanted in on_host.items():
        got, count = on_device[sequence], sequence.search.candidates
        assert isinstance(got, tuple)
        assert isinstance(wanted, tuple)
        assert got[1] is not None
        assert wanted[1] is not None
        np.testing.assert_allclose(got[0][:, :count], wanted[0][:, :count], atol=CLOSE)
        for row, values in enumerate(wanted[0]):
            sure = np.count_nonzero(values[:count] > values[:count][-1] + CLOSE)
            assert set(got[1][row, :sure].tolist()) <= set(wanted[1][row, :count].tolist())


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("vocabulary", "rows"), [(12, 8), (300, 33), (50265, 1), (50265, 32)])
def test_best_scores_are_those_of_the_host(tmp_path: Path, vocabulary: int, rows: int, ties: bool) -> None:
    spec, rng, device = written(tmp_path, vocabulary), random.Random(rows), Device("cuda", 0, Copier(0))
    scores = Cuda(SessionSettings(provider="CUDA"), device).scores(spec, rows)
    assert isinstance(scores, DeviceScores)
    for case in range(5):
        picks, noise = random_batch(rng, vocabulary, rows), np.random.default_rng(case)
        logits = noise.normal(0, 3, (max(map(max, picks.values())) + 1, vocabulary)).astype(np.float32)
        logits = np.round(logits) if ties else logits
        assert_close(scores, device, HostScores(spec, sum(map(len, picks.values())), ONE_THREAD), logits, picks)
    assert all(run._binding.captured for run in scores._runs.values())
