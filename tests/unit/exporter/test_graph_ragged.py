"""The flat input layer gives a graph exactly the tensors that padding would give it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hfx.exporter.encoder.graph.ragged import flatten_inputs
from tests.rigs.files import onnx_toys

PAD = 9
Row = list[list[int]]  # a row's sequences, each of the row's width


def echo(item_rank: int) -> onnx.ModelProto:
    """Return a graph of padded = input_ids, as floats, and of its mask."""
    shape = ("rows", "width")
    model = onnx_toys.graph(
        [
            helper.make_node("Cast", ["input_ids"], ["padded"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        ],
        [onnx_toys.integers("input_ids", *shape), onnx_toys.integers("attention_mask", *shape)],
        [onnx_toys.floats("padded", *shape), onnx_toys.floats("mask", *shape)],
    )
    flatten_inputs(model, item_rank, {"input_ids": PAD, "attention_mask": 0})
    return model


def flat(rows: list[Row], item_rank: int) -> dict[str, np.ndarray]:
    tokens = np.array([token for row in rows for sequence in row for token in sequence], np.int32)
    shapes = [[len(row), len(row[0])][-item_rank:] for row in rows]
    return {
        "input_ids": tokens,
        "attention_mask": np.ones_like(tokens),
        "item_shape": np.array(shapes, np.int32).reshape(len(rows), item_rank),
    }


def padded(rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and mask `[rows, sequences, width]`, padded by hand."""
    most, widest = max(len(row) for row in rows), max(len(row[0]) for row in rows)
    ids, mask = np.full((len(rows), most, widest), PAD), np.zeros((len(rows), most, widest))
    for r, row in enumerate(rows):
        for s, sequence in enumerate(row):
            ids[r, s, : len(sequence)], mask[r, s, : len(sequence)] = sequence, 1
    return ids, mask


ONE_SEQUENCE = [[(1, width) for width in widths] for widths in ([1], [5], [1, 1], [3, 3], [1, 7], [7, 1], range(1, 33))]
SEVERAL = [[(3, 5)], [(1, 4), (3, 4)], [(3, 4), (1, 4)], [(2, 3), (2, 6)], [(1, 1), (4, 2), (2, 7), (1, 3)]]


@pytest.mark.parametrize(
    ("item_rank", "shapes"), [(1, each) for each in ONE_SEQUENCE] + [(2, each) for each in ONE_SEQUENCE[:1] + SEVERAL]
)
def test_rows_are_padded_to_the_widest_and_filled_with_empty_sequences(
    item_rank: int, shapes: list[tuple[int, int]]
) -> None:
    numbers = np.random.default_rng(0)
    rows = [numbers.integers(10, 99, shape).tolist() for shape in shapes]
    answers = onnx_toys.run(echo(item_rank), **flat(rows, item_rank))
    for answer, wanted in zip(answers, padded(rows), strict=True):
        np.testing.assert_array_equal(answer, wanted if item_rank == 2 else wanted[:, 0])


def test_an_output_that_other_nodes_read_is_split_once() -> None:
    """first = ids and second = first + 1 both come back as [rows, sequences, width]."""
    model = onnx_toys.graph(
        [
            helper.make_node("Cast", ["input_ids"], ["first"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["first", "one"], ["second"]),
        ],
        [onnx_toys.integers("input_ids", "rows", "width")],
        [onnx_toys.floats("first", "rows", "width"), onnx_toys.floats("second", "rows", "width")],
        {"one": np.float32(1)},
    )
    flatten_inputs(model, 2, {"input_ids": 0})
    shapes = np.int32([[2, 1], [1, 1]])
    first, second = onnx_toys.run(model, input_ids=np.int32([5, 6, 7]), item_shape=shapes)
    np.testing.assert_array_equal(first, [[[5], [6]], [[7], [0]]])
    np.testing.assert_array_equal(second, first + 1)


@pytest.mark.parametrize("item_rank", [1, 2])
def test_the_inputs_are_flat_int32_and_a_shape_a_row(item_rank: int) -> None:
    inputs = {value.name: value.type.tensor_type for value in echo(item_rank).graph.input}
    assert list(inputs) == ["input_ids", "attention_mask", "item_shape"]
    assert {t.elem_type for t in inputs.values()} == {TensorProto.INT32}
    assert [len(t.shape.dim) for t in inputs.values()] == [1, 1, 2]
    assert inputs["item_shape"].shape.dim[1].dim_value == item_rank
