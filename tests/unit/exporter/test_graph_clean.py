"""Cleaning a graph removes nodes and changes no result."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from hfx.exporter.encoder.graph.build import clean
from tests.rigs.files import onnx_toys

X = np.float32([[1, -2], [3, 4]])


def cluttered() -> onnx.ModelProto:
    """Return y = (x + c) * (x + c) + x with two copies of c, x + c computed twice, and identities in between."""
    constant = numpy_helper.from_array(np.float32(0.5), "value")
    return onnx_toys.graph(
        [
            helper.make_node("Identity", ["x"], ["x1"]),
            helper.make_node("Identity", ["x1"], ["x2"]),
            helper.make_node("Constant", [], ["c"], value=constant),
            helper.make_node("Add", ["x2", "c"], ["left"]),
            helper.make_node("Add", ["x1", "again"], ["right"]),
            helper.make_node("Mul", ["left", "right"], ["square"]),
            helper.make_node("Exp", ["square"], ["unread"]),
            helper.make_node("Add", ["square", "x2"], ["sum"]),
            helper.make_node("Identity", ["sum"], ["y"]),
        ],
        [onnx_toys.floats("x", "rows", 2)],
        [onnx_toys.floats("y", "rows", 2)],
        {"again": np.float32(0.5), "never": np.zeros((100, 100), np.float32)},
    )


def branching() -> onnx.ModelProto:
    """Return y = x if the first of x is positive else -x; both branches return values of the outer graph.

    torch's exporter gives DeBERTa's relative positions this form, with identities in the branches.
    """
    output = onnx_toys.floats("branch", "rows", 2)
    then = helper.make_graph([helper.make_node("Identity", ["x1"], ["branch"])], "then", [], [output])
    other = helper.make_graph(
        [helper.make_node("Identity", ["negative"], ["inner"]), helper.make_node("Identity", ["inner"], ["branch"])],
        "else",
        [],
        [output],
    )
    return onnx_toys.graph(
        [
            helper.make_node("Identity", ["x"], ["x1"]),
            helper.make_node("Neg", ["x"], ["negative"]),
            helper.make_node("Gather", ["x", "zero"], ["row"], axis=0),
            helper.make_node("Gather", ["row", "zero"], ["first"], axis=0),
            helper.make_node("Greater", ["first", "nothing"], ["positive"]),
            helper.make_node("If", ["positive"], ["chosen"], then_branch=then, else_branch=other),
            helper.make_node("Identity", ["chosen"], ["y"]),
        ],
        [onnx_toys.floats("x", "rows", 2)],
        [onnx_toys.floats("y", "rows", 2)],
        {"zero": np.int64(0), "nothing": np.float32(0)},
    )


def test_identity_duplicate_and_unused_nodes_are_removed() -> None:
    model = clean(cluttered())
    np.testing.assert_array_equal(onnx_toys.run(model, x=X)[0], (X + 0.5) ** 2 + X)
    kinds = Counter(node.op_type for node in model.graph.node)
    assert kinds - Counter(["Identity"]) == {"Add": 2, "Mul": 1}  # one may be the output's
    assert [list(i.dims) for i in model.graph.initializer] == [[]]


def test_equal_weights_are_stored_once() -> None:
    weight = np.random.default_rng(0).normal(size=(2, 2)).astype(np.float32)
    model = onnx_toys.graph(
        [
            helper.make_node("MatMul", ["x", "a"], ["between"]),
            helper.make_node("MatMul", ["between", "b"], ["y"]),
        ],
        [onnx_toys.floats("x", "rows", 2)],
        [onnx_toys.floats("y", "rows", 2)],
        {"a": weight, "b": weight.copy()},
    )
    assert len(clean(model).graph.initializer) == 1
    np.testing.assert_array_equal(onnx_toys.run(clean(model), x=X)[0], onnx_toys.run(model, x=X)[0])


@pytest.mark.parametrize("sign", [1, -1])
def test_branches_that_return_outer_values_stay_equal(sign: int) -> None:
    x = sign * np.abs(X)
    np.testing.assert_array_equal(onnx_toys.run(clean(branching()), x=x)[0], np.abs(X))
