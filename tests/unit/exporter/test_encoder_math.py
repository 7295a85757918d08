"""fp32 files that OpenVINO computes in bfloat16: `hfx export --cpu-math bf16`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx import names
from hfx.cli.repository import _entry, _row
from hfx.errors import VerificationFailed
from hfx.exporter.encoder.gate import LIMITS
from hfx.exporter.encoder.graph.build import build_graph, save
from hfx.exporter.encoder.kinds import usual_kind
from hfx.exporter.encoder.plan import widths_up_to
from hfx.exporter.variants.openvino import Bfloat16
from hfx.exporter.variants.variant import Net
from hfx.exporter.verify import against_checkpoint, open_published
from hfx.local.encoder import LocalModel
from hfx.python_backends.onnxruntime import sessions
from hfx.python_backends.onnxruntime.ragged import RUN_ROWS
from hfx.repository.catalog import models
from hfx.repository.lint import lint
from tests import zoo
from tests.rigs.checkpoints import tiny_checkpoints
from tests.rigs.checkpoints.published import export_checkpoint, export_zoo
from tests.rigs.machine.processors import HAS_BFLOAT16

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_BFLOAT16, reason="the processor has no bfloat16 instructions"),
]
EXACT, ROUNDED = "exact", "rounded"
BFLOAT16: dict[str, Any] = {"cpu_runtime": "auto", "cpu_math": "bf16"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    export_zoo("sentiment-distilbert", folder, EXACT, "fp32", "openvino")
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
        assert (choices["cpu_math"], choices["cpu_runtime"]["runtime"]) == (math, "openvino")
        times = choices.get("cpu_math_milliseconds", {})
        assert set(times) == ({"fp32", "bf16"} if math == "bf16" else set())
        assert all(set(each) == {"1x16", "8x64"} and min(each.values()) > 0 for each in times.values())
        config = (repository / f"{name}_net" / "config.pbtxt").read_text()
        assert ('key: "openvino.INFERENCE_PRECISION_HINT"' in config) == (math == "bf16")
    cells = [str(_row(_entry(listed[name]))[2]) for name in (EXACT, ROUNDED)]
    assert [cell.partition(" 1")[0] for cell in cells] == ["fp32 openvino", "fp32 openvino bf16"]  # 100.0 % equal
    assert lint(repository) == []


def test_bfloat16_answers_are_close_but_not_equal_to_float32(repository: Path, requests: list[dict[str, str]]) -> None:
    exact, rounded = scores(repository, EXACT, requests), scores(repository, ROUNDED, requests)
    np.testing.assert_allclose(rounded, exact, atol=0.05)
    assert (rounded != exact).mean() > 0.9


def test_without_bfloat16_instructions_answers_equal_the_float32_export(
    repository: Path, requests: list[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "CPUINFO", tmp_path / "without_flags")
    np.testing.assert_array_equal(scores(repository, ROUNDED, requests), scores(repository, EXACT, requests))


def test_a_bfloat16_export_is_verified_by_its_own_limits(repository: Path) -> None:
    ask = LocalModel.open(repository, ROUNDED).infer_all
    figures = against_checkpoint(open_published(repository, ROUNDED), ask, "cpu", None)
    assert LIMITS["fp32"].drift < figures["mean_drift"] <= LIMITS["bf16"].drift
    with pytest.raises(VerificationFailed):
        against_checkpoint(open_published(repository, EXACT), ask, "cpu", None)


def test_a_bfloat16_export_that_differs_too_much_is_not_published(tmp_path: Path) -> None:
    export_zoo("entities-bert", tmp_path, EXACT, "fp32", "openvino", max_drop=0.0)
    with pytest.raises(VerificationFailed, match="fp32 file for CPU in bfloat16"):
        export_checkpoint(zoo.checkpoint("entities-bert"), tmp_path, name=ROUNDED, **BFLOAT16, max_drop=0.0)
    assert not (tmp_path / ROUNDED).exists()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_text_has_the_same_bits_at_every_width_and_row_count_of_a_run(tmp_path: Path, threads: int) -> None:
    """The batches have every width and number of rows of a run up to 96 tokens."""
    bert = tiny_checkpoints.bert("ForSequenceClassification", max_position_embeddings=128)
    bert.set_attn_implementation("eager")  # as exports load it
    save(build_graph(bert, usual_kind("text-classification"), 0, None), tmp_path / "model.onnx")
    session = sessions.open_session(Net(Bfloat16(), Path()).backend_config(threads), tmp_path / "model.onnx")

    def logits(ids: Any, mask: Any) -> Any:
        tokens = {names.INPUT_IDS: ids, names.ATTENTION_MASK: mask, names.TOKEN_TYPE_IDS: np.zeros_like(ids)}
        feed = {name: np.ascontiguousarray(value.reshape(-1)) for name, value in tokens.items()}
        shape = np.tile(np.array([1, ids.shape[1]], np.int32), (len(ids), 1))  # a window a text
        return session.run({**feed, names.ITEM_SHAPE: shape}, ["logits"])["logits"]

    random = np.random.default_rng(0)
    for width in widths_up_to(96):
        ids = random.integers(5, bert.config.vocab_size, (64, width)).astype(np.int32)
        mask = (np.arange(width) < random.integers(1, width + 1, (64, 1))).astype(np.int32)
        alone = np.concatenate([logits(ids[row : row + 1], mask[row : row + 1]) for row in range(64)])
        for rows in [rows for rows in RUN_ROWS if rows <= session.most_rows]:
            np.testing.assert_array_equal(logits(ids[-rows:], mask[-rows:]), alone[-rows:])
