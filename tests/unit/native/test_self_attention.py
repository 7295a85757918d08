"""An encoder's attention: near float64, and bit equal for a text in any batch with any number of threads."""

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

MASKED = np.float32(-3.4e38)
INPUTS = {
    "SelfAttention": ("qkv", "mask"),
    "SelfAttentionBias": ("qkv", "mask", "bias"),
    "SelfAttentionRotary": ("qkv", "mask", "cos", "sin"),
    "SelfAttentionDisentangled": ("qkv", "mask", "buckets", "position_keys", "position_queries"),
    "SelfAttentionHeads": ("q", "k", "v", "mask"),
}
BUCKETS = 48  # of relative positions; long texts have more distances
SHAPES = [  # heads, dim, rows, width
    (1, 16, 1, 1),
    (2, 16, 3, 5),
    (3, 32, 2, 15),
    (2, 48, 2, 16),
    (12, 64, 3, 17),
    (1, 80, 2, 33),
    (2, 128, 2, 70),
    (2, 64, 2, 130),
    (1, 32, 2, 401),
]


@pytest.fixture
def library(float_library: Path) -> Path:
    """A library with each kind of float kernels."""
    return float_library


def model(
    heads: int, dim: int, portable: bool = False, padded: bool = False, op: str = "SelfAttention", **changes: Any
) -> onnx.ModelProto:
    """Return the operator alone; `portable` adds its definition, `padded` the last token of each text."""
    inputs = [*INPUTS[op], *(["last"] if padded else [])]
    types = {name: TensorProto.INT32 if name in ("last", "buckets") else TensorProto.FLOAT for name in inputs}
    return attention_model(op, types, portable, **{"heads": heads, "scale": dim**-0.5, **changes})


def texts(heads: int, dim: int, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return random queries, keys and values, and masks of the tokens behind each text's end."""
    random = np.random.default_rng(rows * width + dim)
    qkv = random.normal(size=(rows, width, 3 * heads * dim)).astype(np.float32) * 2
    lengths = random.integers(1, width + 1, (rows, 1, 1, 1))
    return qkv, np.where(np.arange(width) < lengths, np.float32(0), MASKED).astype(np.float32)


def heads_of(qkv: NDArray[Any], heads: int) -> list[NDArray[Any]]:
    """Return queries, keys and values [rows, heads, width, dim] in float64."""
    rows, width, _ = qkv.shape
    parts = np.split(qkv.astype(np.float64), 3, -1)
    return [each.reshape(rows, width, heads, -1).swapaxes(1, 2) for each in parts]


def exact(qkv: NDArray[Any], mask: NDArray[Any], heads: int) -> NDArray[Any]:
    """Return the attention in float64."""
    rows, width, _ = qkv.shape
    q, k, v = heads_of(qkv, heads)
    scores = q @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5 + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed: NDArray[Any] = weights / weights.sum(-1, keepdims=True) @ v
    return mixed.swapaxes(1, 2).reshape(rows, width, -1)


@pytest.mark.parametrize(("heads", "dim", "rows", "width"), SHAPES)
def test_attention_is_near_float64_and_bit_equal_alone_and_in_a_batch(
    library: Path, heads: int, dim: int, rows: int, width: int
) -> None:
    qkv, mask = texts(heads, dim, rows, width)
    sessions = [open_model(model(heads, dim), options(library, threads)) for threads in (1, 2, 3)]
    together = sessions[0].run(None, {"qkv": qkv, "mask": mask})[0]
    np.testing.assert_allclose(together, exact(qkv, mask, heads), atol=3e-5)
    for session in sessions:
        np.testing.assert_array_equal(session.run(None, {"qkv": qkv, "mask": mask})[0], together)
        for row in range(rows):
            alone = session.run(None, {"qkv": qkv[row : row + 1], "mask": mask[row : row + 1]})[0]
            np.testing.assert_array_equal(alone[0], together[row])


@pytest.mark.parametrize(("heads", "dim", "rows", "width"), SHAPES)
def test_padding_is_zeros_and_tokens_are_what_they_are_masked(
    library: Path, heads: int, dim: int, rows: int, width: int
) -> None:
    qkv, mask = texts(heads, dim, rows, width)
    masked = open_model(model(heads, dim), options(library)).run(None, {"qkv": qkv, "mask": mask})[0]
    real = mask[:, 0, 0] == 0
    qkv[~real] = np.nan  # values that are not read can't spoil anything
    last = real.sum(1, dtype=np.int32) - 1
    for portable in (False, True):
        session = open_model(model(heads, dim, portable, padded=True), options(library, 2))
        found = session.run(None, {"qkv": qkv, "mask": mask, "last": last})[0]
        np.testing.assert_array_equal(found[real], masked[real])
        assert not found[~real].any()


@pytest.mark.parametrize("width", [5, 16, 130])
def test_values_that_a_mask_hides_count_for_nothing(library: Path, width: int) -> None:
    """Even huge values count for nothing, not even by the smallest normal float32, 1e-38."""
    qkv, mask = texts(2, 32, 1, width)
    mask[..., : width // 2], mask[..., width // 2 :] = MASKED, 0  # the first tokens, like tokens outside a window
    session = open_model(model(2, 32), options(library))
    expected = session.run(None, {"qkv": qkv, "mask": mask})[0]
    qkv[:, : width // 2, 2 * 64 :] = 1e38
    np.testing.assert_array_equal(session.run(None, {"qkv": qkv, "mask": mask})[0], expected)


def feed_of(op: str, heads: int, dim: int, rows: int, width: int) -> dict[str, NDArray[Any]]:
    """Return inputs of `op`: those of texts(), a random bias, angles and positions, the last token of each text."""
    qkv, mask = texts(heads, dim, rows, width)
    parts = (part.reshape(rows, width, heads, dim).swapaxes(1, 2) for part in np.split(qkv, 3, -1))
    by_head = {name: np.ascontiguousarray(part) for name, part in zip("qkv", parts, strict=True)}
    random = np.random.default_rng(width)
    bias = random.normal(size=(1, heads, width, width)).astype(np.float32)
    angles = random.uniform(-np.pi, np.pi, (1, 1, width, dim))
    rotation = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    given = random.normal(size=(2, heads, dim, BUCKETS)).astype(np.float32)
    # One for each distance of near tokens, for five of far ones, and for all of the farthest.
    distance = np.arange(width - 1, -width - 1, -1)
    far = np.sign(distance) * np.minimum(BUCKETS // 3 + np.abs(distance) // 5, BUCKETS // 2 - 1)
    buckets = np.where(np.abs(distance) < BUCKETS // 3, distance, far) + BUCKETS // 2
    feed = {"qkv": qkv, "mask": mask, "bias": bias, **rotation, **by_head}
    feed |= {"buckets": buckets.astype(np.int32), "position_keys": given[0], "position_queries": given[1]}
    last = (mask[:, 0, 0] == 0).sum(1, dtype=np.int32) - 1
    return {name: feed[name] for name in INPUTS[op]} | {"last": last}


def expected(op: str, heads: int, dim: int, rows: int, width: int) -> NDArray[Any]:
    """Return the result of `op` for feed_of() in float64."""
    feed = feed_of(op, heads, dim, rows, width)
    qkv, mask = texts(heads, dim, rows, width)
    if "cos" in feed:
        x = qkv.reshape(rows, width, 3, heads, dim).astype(np.float64)
        low, high = np.split(x[:, :, :2], 2, -1)
        cos, sin = (feed[name][0, 0][None, :, None, None] for name in ("cos", "sin"))
        x[:, :, :2] = x[:, :, :2] * cos + np.concatenate([-high, low], -1) * sin
        qkv = x.reshape(qkv.shape)
    bias = feed.get("bias", np.zeros(1))
    if "buckets" in feed:
        token = np.arange(width)
        of_key = feed["buckets"][token - token[:, None] + width - 1]  # [query, key]
        q, k, _ = heads_of(qkv, heads)
        bias = np.einsum("rhqd,hdqk->rhqk", q, feed["position_keys"][:, :, of_key].astype(np.float64))
        bias += np.einsum("rhkd,hdqk->rhqk", k, feed["position_queries"][:, :, of_key].astype(np.float64))
        bias *= dim**-0.5
    return exact(qkv, mask + bias, heads)


def of_row(feed: dict[str, NDArray[Any]], row: int, length: int) -> dict[str, NDArray[Any]]:
    """Return the inputs of one text alone, without its padding."""

    def cut(name: str, array: NDArray[Any]) -> NDArray[Any]:
        if name in ("position_keys", "position_queries"):
            return array
        if name == "buckets":
            width = len(array) // 2
            return array[width - length : width + length]
        own = array if len(array) == 1 and name in ("bias", "cos", "sin") else array[row : row + 1]
        tokens = {"qkv": [1], "mask": [3], "bias": [2, 3], "last": []}.get(name, [2])
        for axis in tokens:
            own = own.take(range(length), axis)
        return np.ascontiguousarray(own)

    return {name: cut(name, array) for name, array in feed.items()}


@pytest.mark.parametrize("op", [op for op in INPUTS if op != "SelfAttention"])
@pytest.mark.parametrize(("heads", "dim", "rows", "width"), SHAPES)
def test_every_variant_is_near_float64_and_bit_equal_alone_and_in_a_batch(
    library: Path, op: str, heads: int, dim: int, rows: int, width: int
) -> None:
    feed = feed_of(op, heads, dim, rows, width)
    whole = open_model(model(heads, dim, op=op), options(library))
    together = whole.run(None, {name: feed[name] for name in INPUTS[op]})[0]
    np.testing.assert_allclose(together, expected(op, heads, dim, rows, width), atol=5e-5)
    padded = open_model(model(heads, dim, padded=True, op=op), options(library, 2))
    found = padded.run(None, feed)[0]
    for row, length in enumerate(feed["last"] + 1):
        np.testing.assert_array_equal(found[row, :length], together[row, :length])
        assert not found[row, length:].any()
        np.testing.assert_array_equal(padded.run(None, of_row(feed, row, length))[0][0], found[row, :length])


@pytest.mark.parametrize(("heads", "dim", "rows", "width"), SHAPES)
def test_separate_and_joined_heads_give_the_same_bits(
    library: Path, heads: int, dim: int, rows: int, width: int
) -> None:
    apart, joined = (feed_of(op, heads, dim, rows, width) for op in ("SelfAttentionHeads", "SelfAttention"))
    got = open_model(model(heads, dim, padded=True, op="SelfAttentionHeads"), options(library)).run(None, apart)[0]
    want = open_model(model(heads, dim, padded=True), options(library)).run(None, joined)[0]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("op", INPUTS)
@pytest.mark.parametrize("at_end", [True, False])
def test_attention_operators_touch_nothing_beyond_a_tensor(library: Path, op: str, at_end: bool) -> None:
    for heads, dim, rows, width in SHAPES:
        feed = {name: copy_of(array, at_end) for name, array in feed_of(op, heads, dim, rows, width).items()}
        session = open_model(model(heads, dim, padded=True, op=op), options(library))
        y, binding = guarded((rows, width, heads * dim), np.float32, at_end), session.io_binding()
        for name, array in feed.items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(y, session.run(None, feed)[0])


@pytest.mark.parametrize("last", [[-1, 0, 0], [0, 5, 0], [0, 0], [0] * 4, []])
def test_last_tokens_that_do_not_fit_are_refused(any_library: Path, last: list[int]) -> None:
    feed = {"qkv": np.zeros((3, 5, 96), np.float32), "mask": np.zeros((3, 1, 1, 5), np.float32)}
    session = open_model(model(2, 16, padded=True), options(any_library))
    with pytest.raises((errors.InvalidArgument, errors.Fail), match="hfx: "):
        session.run(None, feed | {"last": np.array(last, np.int32)})


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 1, 1), (1, 2, 1), (1, 1, 17), (3, 2, 17)])
def test_a_mask_is_broadcast_in_every_dimension(library: Path, sizes: tuple[int, ...]) -> None:
    qkv, _ = texts(2, 16, 3, 17)
    mask = np.random.default_rng(0).normal(size=(*sizes, 17)).astype(np.float32)
    session = open_model(model(2, 16), options(library))
    whole = np.broadcast_to(mask, (3, 2, 17, 17)).copy()
    got, want = (session.run(None, {"qkv": qkv, "mask": each})[0] for each in (mask, whole))
    np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(got, exact(qkv, mask, 2), atol=3e-5)


@pytest.mark.parametrize("op", INPUTS)
def test_the_definition_computes_the_same(op: str) -> None:
    feed = feed_of(op, 2, 16, 3, 17)
    session = onnxruntime.InferenceSession(model(2, 16, portable=True, op=op).SerializeToString())
    got = session.run(None, {name: feed[name] for name in INPUTS[op]})[0]
    np.testing.assert_allclose(got, expected(op, 2, 16, 3, 17), atol=3e-5)


def test_a_nan_stays_in_its_text(any_library: Path) -> None:
    qkv, mask = texts(2, 16, 3, 17)
    session = open_model(model(2, 16), options(any_library))
    clean = session.run(None, {"qkv": qkv, "mask": mask})[0]
    qkv[1, 4] = np.nan
    got = session.run(None, {"qkv": qkv, "mask": mask})[0]
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
def test_no_rows_or_no_tokens_give_an_empty_output(any_library: Path, shape: tuple[int, int]) -> None:
    rows, width = shape
    feed = {"qkv": np.zeros((rows, width, 96), np.float32), "mask": np.zeros((rows, 1, 1, width), np.float32)}
    assert open_model(model(2, 16), options(any_library)).run(None, feed)[0].shape == (rows, width, 32)


@pytest.mark.parametrize(
    ("qkv", "mask"),
    [
        ((3, 5, 95), (3, 1, 1, 5)),
        ((3, 5, 2), (3, 1, 1, 5)),
        ((3, 5, 3 * 2 * 24), (3, 1, 1, 5)),
        ((15, 96), (3, 1, 1, 5)),
        ((3, 5, 96), (3, 1, 5)),
        ((3, 5, 96), (2, 1, 1, 5)),
        ((3, 5, 96), (3, 3, 1, 5)),
        ((3, 5, 96), (3, 1, 4, 5)),
        ((3, 5, 96), (3, 1, 1, 6)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(any_library: Path, qkv: tuple[int, ...], mask: tuple[int, ...]) -> None:
    feed = {"qkv": np.zeros(qkv, np.float32), "mask": np.zeros(mask, np.float32)}
    session = open_model(model(2, 16), options(any_library))
    with pytest.raises((errors.InvalidArgument, errors.Fail), match="hfx: "):
        session.run(None, feed)


@pytest.mark.parametrize(
    ("op", "name", "shape"),
    [
        ("SelfAttentionBias", "bias", (1, 2, 17, 16)),
        ("SelfAttentionBias", "bias", (2, 2, 17, 17)),
        ("SelfAttentionRotary", "cos", (1, 1, 16, 16)),
        ("SelfAttentionRotary", "sin", (1, 17, 16)),
        ("SelfAttentionRotary", "sin", (1, 1, 34, 8)),
        ("SelfAttentionDisentangled", "buckets", (33,)),
        ("SelfAttentionDisentangled", "buckets", (2, 17)),
        ("SelfAttentionDisentangled", "position_keys", (2, 16, 64)),
        ("SelfAttentionDisentangled", "position_queries", (2, 16, 40)),
        ("SelfAttentionDisentangled", "position_queries", (2, 32, 48)),
        ("SelfAttentionDisentangled", "position_queries", (3, 16, 48)),
        ("SelfAttentionDisentangled", "position_queries", (32, 48)),
        ("SelfAttentionHeads", "q", (3, 2, 17, 24)),
        ("SelfAttentionHeads", "k", (3, 2, 16, 16)),
        ("SelfAttentionHeads", "v", (3, 1, 17, 16)),
        ("SelfAttentionHeads", "v", (3, 17, 32)),
        ("SelfAttentionHeads", "mask", (2, 1, 1, 17)),
    ],
)
def test_extra_inputs_of_the_wrong_shape_are_refused(
    any_library: Path, op: str, name: str, shape: tuple[int, ...]
) -> None:
    session, feed = open_model(model(2, 16, padded=True, op=op), options(any_library)), feed_of(op, 2, 16, 3, 17)
    with pytest.raises((errors.InvalidArgument, errors.Fail), match="hfx: "):
        session.run(None, feed | {name: np.zeros(shape, feed[name].dtype)})


@pytest.mark.parametrize("count", [2, 3, 32, 33])
def test_a_definition_fails_with_fewer_buckets_than_two_for_each_token(count: int) -> None:
    op = "SelfAttentionDisentangled"
    session = onnxruntime.InferenceSession(model(2, 16, portable=True, op=op).SerializeToString())
    feed = {name: array for name, array in feed_of(op, 2, 16, 3, 17).items() if name in INPUTS[op]}
    with pytest.raises(errors.Fail):
        session.run(None, feed | {"buckets": np.zeros(count, np.int32)})


@pytest.mark.parametrize("bucket", [-1, BUCKETS])
def test_a_bucket_that_is_not_there_is_refused(any_library: Path, bucket: int) -> None:
    op = "SelfAttentionDisentangled"
    feed = feed_of(op, 2, 16, 3, 17)
    feed["buckets"][5] = bucket
    with pytest.raises((errors.InvalidArgument, errors.Fail), match="hfx: there is no such bucket"):
        open_model(model(2, 16, padded=True, op=op), options(any_library)).run(None, feed)


def test_heads_of_another_size_than_sixteens_are_refused(any_library: Path) -> None:
    session = open_model(model(2, 24, op="SelfAttentionHeads"), options(any_library))
    feed = feed_of("SelfAttentionHeads", 2, 24, 3, 5)
    with pytest.raises((errors.InvalidArgument, errors.Fail), match="multiple of 16"):
        session.run(None, {name: feed[name] for name in INPUTS["SelfAttentionHeads"]})


@pytest.mark.parametrize("heads", [0, -1, 4097])
def test_a_number_of_heads_out_of_range_is_refused(any_library: Path, heads: int) -> None:
    with pytest.raises((errors.InvalidArgument, errors.RuntimeException, errors.Fail), match="hfx: heads"):
        open_model(model(heads, 16), options(any_library))
