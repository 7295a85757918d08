"""The ONNX graph of an encoder by optimum's exporter, for those who have it: `hfx export --exporter optimum`.

optimum-onnx 0.1 wants transformers 4.57; the extra `[optimum]` of hfx brings both.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# optimum's names of tasks, by transformers' class.
TASKS = {
    "AutoModel": "feature-extraction",
    "AutoModelForQuestionAnswering": "question-answering",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
}


def optimum_graph(model: PreTrainedModel, auto_class: str, opset: int) -> onnx.ModelProto:
    """The graph of `model`, of transformers' `auto_class`, with inputs and outputs that optimum chooses.

    Raises ModuleNotFoundError without optimum, what optimum raises, OSError where TMPDIR can't be written.
    """
    from optimum.exporters.onnx import onnx_export_from_model

    with tempfile.TemporaryDirectory(prefix="hfx-export-") as folder:
        onnx_export_from_model(model, folder, opset=opset, task=TASKS[auto_class], do_validation=False)
        return onnx.load(Path(folder) / "model.onnx")
