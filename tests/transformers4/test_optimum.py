"""`hfx export --exporter optimum` passes the same gate, and its graph answers like the traced one."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from hfx.exporter.encoder.graph.build import build_graph, inlined
from hfx.exporter.encoder.kinds import usual_kind
from hfx.exporter.options import Exporter, ExportOptions
from hfx.exporter.pipeline import export, make_plan
from hfx.exporter.source import open_checkpoint
from hfx.local.encoder import LocalModel
from hfx.manifest import Manifest
from tests.rigs.checkpoints import tiny_checkpoints, tiny_encoders

HEADS = {
    "text-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering",
    "feature-extraction": "Model",
}


def published(folder: Path, task: str, exporter: Exporter) -> Manifest:
    tiny_checkpoints.save(folder / "tiny", tiny_checkpoints.bert(HEADS[task]))
    options = ExportOptions(repository=folder / exporter, task=task, device="cpu", exporter=exporter)
    return export(make_plan(open_checkpoint(str(folder / "tiny")), options), lambda title: nullcontext())


@pytest.mark.parametrize("task", HEADS)
def test_an_export_by_optimum_passes_the_gate_and_is_published(task: str, tmp_path: Path) -> None:
    manifest = published(tmp_path, task, "optimum")
    assert manifest.choices["graph"] == "optimum"
    assert manifest.parity["cpu"]["agreement"] == 1.0
    assert "optimum" in manifest.versions


def test_optimums_graph_answers_like_the_traced_graph(tmp_path: Path) -> None:
    requests = [{"text_input": text, "top_k": 3} for text in ("a good film", "the cat sat in paris .")]
    answers = []
    for exporter in ("own", "optimum"):
        published(tmp_path, "text-classification", exporter)
        model = LocalModel.open(tmp_path / exporter, "tiny", "cpu", "CPU")
        encoded = model.encode(requests)
        answers.append([outputs["logits"] for outputs in model.run(encoded)])
    np.testing.assert_allclose(*answers, atol=1e-6)


@pytest.mark.parametrize(
    "model_type", ["bert", "roberta", "distilbert", "mpnet", "deberta-v2", "albert", "electra", "bart"]
)
def test_the_traced_graph_has_no_more_nodes_than_optimums(model_type: str) -> None:
    """The traced graph has the same operators except for a few of the masks; DeBERTa's has half as many."""
    task = usual_kind("text-classification")
    counts = []
    for exporter in ("own", "optimum"):
        graph = inlined(build_graph(tiny_encoders.build(model_type, task.auto_class), task, 1, None, exporter))
        counts.append(len(graph.graph.node))
    assert counts[0] <= (0.5 if model_type == "deberta-v2" else 1.05) * counts[1]
