"""A BART classifier pools each row at its own last "</s>", whatever other rows contain."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch

from hfx.exporter.encoder.graph.build import build_graph
from hfx.exporter.encoder.kinds import usual_kind
from tests.rigs.checkpoints import tiny_encoders
from tests.rigs.files import onnx_toys

BOS, PAD, EOS = 0, 1, 2
ROWS = {
    "one end": [BOS, 5, 6, 7, EOS],
    "spelled in the middle": [BOS, 5, EOS, 7, 8, EOS],
    "spelled twice at the end": [BOS, 9, EOS, EOS, EOS],
    "a pair": [BOS, 5, 6, EOS, EOS, 8, 9, 10, EOS],
    "nothing but ends": [EOS, EOS, EOS],
    "short": [BOS, EOS],
}


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_encoders.build("bart", "AutoModelForSequenceClassification")


@pytest.fixture(scope="module")
def graph(model: Any) -> onnx.ModelProto:
    return build_graph(model, usual_kind("text-classification"), PAD, None)


def logits(graph: onnx.ModelProto, *rows: list[int]) -> np.ndarray:
    tokens = np.array([token for row in rows for token in row], np.int32)
    shape = np.array([[1, len(row)] for row in rows], np.int32)
    (answer,) = onnx_toys.run(graph, input_ids=tokens, attention_mask=np.ones_like(tokens), item_shape=shape)
    return answer[:, 0]


@pytest.mark.parametrize("name", ROWS)
def test_a_single_row_has_the_logits_of_torch(graph: onnx.ModelProto, model: Any, name: str) -> None:
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([ROWS[name]])).logits.numpy()
    np.testing.assert_allclose(logits(graph, ROWS[name]), wanted, atol=2e-5)  # sums of float32, by other kernels


def test_rows_of_different_counts_are_the_same_alone_and_in_a_batch(graph: onnx.ModelProto) -> None:
    together = logits(graph, *ROWS.values())
    alone = np.concatenate([logits(graph, row) for row in ROWS.values()])
    np.testing.assert_allclose(together, alone, atol=1e-5)  # at another width, sums are in another order
    assert len(np.unique(together.round(3), axis=0)) == len(ROWS)
    rows = [[BOS, 5, 6, 7, EOS], [BOS, 5, EOS, 7, EOS], [BOS, EOS, EOS, EOS, EOS]]  # of one width: to the bit
    for row, answer in zip(rows, logits(graph, *rows), strict=True):
        np.testing.assert_array_equal(logits(graph, row)[0], answer)


def test_padding_with_the_end_token_does_not_move_the_pooled_position(graph: onnx.ModelProto, model: Any) -> None:
    padded = build_graph(model, usual_kind("text-classification"), EOS, None)
    rows = [ROWS["a pair"], ROWS["one end"], ROWS["short"]]
    np.testing.assert_allclose(logits(padded, *rows), logits(graph, *rows), atol=1e-5)


def test_an_export_leaves_the_eos_check_of_the_model_in_place(graph: onnx.ModelProto, model: Any) -> None:
    with pytest.raises(ValueError, match="same number of <eos>"):
        model(input_ids=torch.tensor([[BOS, 5, EOS], [BOS, EOS, EOS]]))
