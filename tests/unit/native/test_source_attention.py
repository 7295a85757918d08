"""Attention by source lengths alone: near float64, and bit equal for a source in any batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from tests.unit.native.sessions import attention_model, open_model, options
from tests.unit.native.test_self_attention import SHAPES, exact


@pytest.fixture
def library(float_library: Path) -> Path:
    """A library with each kind of float kernels."""
    return float_library


def source_model(heads: int, dim: int, biased: bool, portable: bool = False) -> onnx.ModelProto:
    """Return attention by lengths alone; `portable` adds its definition."""
    op, names = "SourceAttentionBias" if biased else "SourceAttention", ("qkv", "last", "total", "lead", "bias")
    kinds = (TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT)
    fed = dict(zip(names, kinds, strict=True))
    if not biased:
        del fed["bias"]
    return attention_model(op, fed, portable, heads=heads, scale=dim**-0.5)


def sources(heads: int, dim: int, rows: int, width: int, biased: bool) -> dict[str, NDArray[Any]]:
    """Return random sources of random lengths; the longest is as wide as the batch."""
    random = np.random.default_rng(rows * width + dim)
    last = random.integers(0, width, rows).astype(np.int32)
    last[0] = width - 1
    bias = random.normal(size=(1, heads, width, width)).astype(np.float32)
    return {
        "qkv": random.normal(size=(rows * width, 3 * heads * dim)).astype(np.float32),
        "last": last,
        "total": np.array(width, np.int32),
        "lead": np.array([rows, width, -1]),
        **({"bias": bias} if biased else {}),
    }


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("heads", "dim", "rows", "width"), [shape for shape in SHAPES if shape[3] > 1])
def test_a_source_is_near_float64_and_has_the_same_bits_at_any_width(
    library: Path, heads: int, dim: int, rows: int, width: int, biased: bool
) -> None:
    feed = sources(heads, dim, rows, width, biased)
    session = open_model(source_model(heads, dim, biased), options(library))
    together = session.run(None, feed)[0].reshape(rows, width, -1)
    tokens = feed["qkv"].reshape(rows, width, -1)
    for row, length in enumerate(feed["last"] + 1):
        bias = feed["bias"][:, :, :length, :length] if biased else np.zeros((1, heads, length, length), np.float32)
        source = tokens[row : row + 1, :length]
        np.testing.assert_allclose(together[row, :length], exact(source, bias, heads)[0], atol=3e-5)
        assert not together[row, length:].any()
        own = {"qkv": source[0], "last": feed["last"][row : row + 1], "total": np.array(length, np.int32)}
        own["lead"] = np.array([1, length, -1])
        alone = session.run(None, own | ({"bias": np.ascontiguousarray(bias)} if biased else {}))[0]
        np.testing.assert_array_equal(alone, together[row, :length])


@pytest.mark.parametrize("biased", [False, True])
def test_the_definition_of_a_source_computes_the_same(library: Path, biased: bool) -> None:
    feed = sources(2, 16, 3, 17, biased)
    portable = onnxruntime.InferenceSession(source_model(2, 16, biased, portable=True).SerializeToString())
    native = open_model(source_model(2, 16, biased), options(library))
    real = np.arange(17) <= feed["last"][:, None]
    got, want = (session.run(None, feed)[0].reshape(3, 17, -1)[real] for session in (native, portable))
    np.testing.assert_allclose(got, want, atol=3e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("last", np.array([16, 17, 3], np.int32)),
        ("last", np.array([16, -1, 3], np.int32)),
        ("last", np.array([16, 3], np.int32)),
        ("qkv", np.zeros((3, 17, 96), np.float32)),
        ("qkv", np.zeros((51, 95), np.float32)),
        ("bias", np.zeros((1, 2, 17, 16), np.float32)),
        ("bias", np.zeros((1, 3, 17, 17), np.float32)),
    ],
)
def test_sources_of_the_wrong_length_or_shape_are_refused(any_library: Path, name: str, value: NDArray[Any]) -> None:
    session = open_model(source_model(2, 16, biased=True), options(any_library))
    with pytest.raises((errors.InvalidArgument, errors.Fail), match="hfx: "):
        session.run(None, sources(2, 16, 3, 17, biased=True) | {name: value})
