"""Attention of first tokens alone: the bits of SelfAttention, which computes all tokens."""

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

from tests.unit.native.guarded import copy_of, guarded
from tests.unit.native.sessions import attention_model, open_model, options
from tests.unit.native.test_self_attention import SHAPES, feed_of
from tests.unit.native.test_self_attention import model as all_tokens


@pytest.fixture
def library(float_library: Path) -> Path:
    """A library with each kind of float kernels."""
    return float_library


def inputs(heads: int, dim: int, rows: int, width: int) -> dict[str, NDArray[Any]]:
    """Return the inputs of SelfAttentionFirst for texts()."""
    feed, inner = feed_of("SelfAttention", heads, dim, rows, width), heads * dim
    qkv = feed.pop("qkv")
    parts = {"queries": qkv[:, 0, :inner], "kv": qkv[..., inner:]}
    return {name: np.ascontiguousarray(part) for name, part in parts.items()} | feed


def model(heads: int, dim: int, portable: bool = False) -> onnx.ModelProto:
    """Return SelfAttentionFirst alone."""
    types = dict.fromkeys(("queries", "kv", "mask"), TensorProto.FLOAT) | {"last": TensorProto.INT32}
    return attention_model("SelfAttentionFirst", types, portable, heads=heads, scale=dim**-0.5)


@pytest.mark.parametrize(("heads", "dim", "rows", "width"), SHAPES)
def test_first_tokens_alone_have_the_bits_of_all_tokens(
    library: Path, heads: int, dim: int, rows: int, width: int
) -> None:
    whole = open_model(all_tokens(heads, dim, padded=True), options(library))
    want = whole.run(None, feed_of("SelfAttention", heads, dim, rows, width))[0][:, 0]
    feed = inputs(heads, dim, rows, width)
    for threads in (1, 2, 3):
        session = open_model(model(heads, dim), options(library, threads))
        np.testing.assert_array_equal(session.run(None, feed)[0], want)
    without = onnxruntime.InferenceSession(model(heads, dim, portable=True).SerializeToString())
    np.testing.assert_allclose(without.run(None, feed)[0], want, atol=3e-5)
    feed["mask"] = np.broadcast_to(feed["mask"], (rows, heads, width, width)).copy()
    feed["mask"][:, :, 1:] = np.nan  # the masks of other tokens are not read
    np.testing.assert_array_equal(session.run(None, feed)[0], want)
    np.testing.assert_allclose(without.run(None, feed)[0], want, atol=3e-5)


@pytest.mark.parametrize("at_end", [True, False])
def test_attention_of_first_tokens_touches_nothing_beyond_a_tensor(library: Path, at_end: bool) -> None:
    for heads, dim, rows, width in SHAPES:
        feed = {name: copy_of(array, at_end) for name, array in inputs(heads, dim, rows, width).items()}
        session = open_model(model(heads, dim), options(library))
        y, binding = guarded((rows, heads * dim), np.float32, at_end), session.io_binding()
        for name, array in feed.items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(y, session.run(None, feed)[0])


@pytest.mark.parametrize(
    ("queries", "kv"),
    [
        ((3, 32), (3, 5, 32)),
        ((2, 32), (3, 5, 64)),
        ((3, 1, 32), (3, 5, 64)),
        ((3, 31), (3, 5, 62)),
        ((3, 32), (3, 0, 64)),
    ],
)
def test_queries_of_first_tokens_that_do_not_fit_are_refused(
    any_library: Path, queries: tuple[int, ...], kv: tuple[int, ...]
) -> None:
    feed = {"queries": np.zeros(queries, np.float32), "kv": np.zeros(kv, np.float32)}
    feed |= {"mask": np.zeros((3, 1, 1, kv[1]), np.float32), "last": np.zeros(3, np.int32)}
    with pytest.raises((errors.InvalidArgument, errors.Fail), match="hfx: "):
        open_model(model(2, 16), options(any_library)).run(None, feed)
