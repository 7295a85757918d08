"""fp32 files that native operators compute in bfloat16: `hfx export --cpu-math bf16`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from hfx import names
from hfx.cli.repository import _entry, _row
from hfx.errors import VerificationFailed
from hfx.exporter.encoder.gate import LIMITS
from hfx.exporter.verify import against_checkpoint, open_published
from hfx.local.encoder import LocalModel
from hfx.repository.catalog import models
from hfx.repository.lint import lint
from tests import zoo
from tests.rigs.checkpoints.published import export_checkpoint, export_zoo
from tests.rigs.machine.processors import HAS_NATIVE

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAS_NATIVE, reason="native operators don't run here")]
EXACT, ROUNDED = "exact", "rounded"
BFLOAT16: dict[str, Any] = {"cpu_runtime": "auto", "cpu_math": "bf16"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    export_zoo("sentiment-distilbert", folder, EXACT, "fp32", "native")
    export_zoo("sentiment-distilbert", folder, ROUNDED, "fp32", cpu_math="bf16")
    return folder


@pytest.fixture(scope="module")
def requests() -> list[dict[str, str]]:
    return [{names.TEXT_INPUT: example.text} for example in zoo.heldout("sentiment", 100)]


def scores(repository: Path, name: str, requests: list[dict[str, str]]) -> Any:
    return np.array([answer[names.SCORE][0] for answer in LocalModel.open(repository, name).infer_all(requests)])


def test_configuration_manifest_and_list_state_the_cpu_math(repository: Path) -> None:
    listed = {entry.name: entry for entry in models(repository)}
    for name, math in ((EXACT, "fp32"), (ROUNDED, "bf16")):
        choices: Any = listed[name].manifest.choices  # type: ignore[union-attr]
        assert (choices["cpu_math"], choices["cpu_runtime"]["runtime"]) == (math, "native")
        assert f'"native-{math}"' in (repository / f"{name}_net" / "config.pbtxt").read_text()
    cells = [str(_row(_entry(listed[name]))[2]) for name in (EXACT, ROUNDED)]
    assert [cell.partition(" 1")[0] for cell in cells] == ["fp32 native", "fp32 native bf16"]  # 100.0 % equal
    assert lint(repository) == []


def test_the_weights_of_products_are_bfloat16_and_those_of_the_head_float32(repository: Path) -> None:
    graph = onnx.load(repository / f"{ROUNDED}_net" / "1" / "model.onnx").graph
    types = {each.name: each.data_type for each in graph.initializer}
    linears = {node.op_type: types[node.input[1]] for node in graph.node if "Linear" in node.op_type}
    rounded = dict.fromkeys(("Bfloat16Linear", "Bfloat16LinearAdd", "Bfloat16LinearGelu"), TensorProto.BFLOAT16)
    assert linears.items() >= {**rounded, "FloatLinear": TensorProto.FLOAT}.items()


def test_bfloat16_answers_are_close_but_not_equal_to_float32(repository: Path, requests: list[dict[str, str]]) -> None:
    exact, rounded = scores(repository, EXACT, requests), scores(repository, ROUNDED, requests)
    np.testing.assert_allclose(rounded, exact, atol=0.05)
    assert (rounded != exact).mean() > 0.9


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_a_text_has_the_same_bits_in_any_batch(repository: Path, requests: list[dict[str, str]], batch: int) -> None:
    model = LocalModel.open(repository, ROUNDED)
    parts = [model.infer_all(requests[at : at + batch]) for at in range(0, len(requests), batch)]
    found = np.array([answer[names.SCORE][0] for part in parts for answer in part])
    np.testing.assert_array_equal(found, scores(repository, ROUNDED, requests))


def test_a_bfloat16_export_is_verified_by_its_own_limits(repository: Path) -> None:
    ask = LocalModel.open(repository, ROUNDED).infer_all
    figures = against_checkpoint(open_published(repository, ROUNDED), ask, "cpu", None)
    assert LIMITS["fp32"].drift < figures["mean_drift"] <= LIMITS["bf16"].drift
    with pytest.raises(VerificationFailed):
        against_checkpoint(open_published(repository, EXACT), ask, "cpu", None)


def test_a_bfloat16_export_that_differs_too_much_is_not_published(tmp_path: Path) -> None:
    export_zoo("entities-bert", tmp_path, EXACT, "fp32", "native", max_drop=0.0)
    with pytest.raises(VerificationFailed, match="fp32 file for CPU in bfloat16"):
        export_checkpoint(zoo.checkpoint("entities-bert"), tmp_path, name=ROUNDED, **BFLOAT16, max_drop=0.0)
    assert not (tmp_path / ROUNDED).exists()
