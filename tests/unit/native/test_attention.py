"""Attention to caches compared with numpy in float64: prompts, steps, chunks, windows, biases and beams."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from tests.unit.native.sessions import open_model, options

FLOAT, INT8, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.INT32, TensorProto.INT64
HALF = TensorProto.FLOAT16
CACHES = {"past_k": FLOAT, "past_v": FLOAT, "last": INT32}
HALVES = {"past_k": HALF, "past_v": HALF, "last": INT32}
INPUTS = {
    "CachedAttention": {"x": FLOAT, **CACHES, "total": INT32, "lead": INT64},
    "CachedAttentionBias": {"x": FLOAT, **CACHES, "total": INT32, "lead": INT64, "bias": FLOAT},
    "CachedAttentionFloat16": {"x": FLOAT, **HALVES, "total": INT32, "lead": INT64},
    "CachedAttentionFloat16 picked": {"x": FLOAT, **HALVES, "total": INT32, "lead": INT64, "picked": INT64},
    "CachedAttentionRotaryFloat16": {"x": FLOAT, **HALVES, "total": INT32, "lead": INT64, "cos": FLOAT, "sin": FLOAT},
    "CrossAttention": {"x": FLOAT, **CACHES, "k_last": FLOAT, "v_last": FLOAT, "total": INT32},
    "CrossAttentionInt8": {
        "x": FLOAT, "past_k": INT8, "past_v": INT8, "last": INT32, "k_scale": FLOAT, "v_scale": FLOAT,
        "k_last": FLOAT, "v_last": FLOAT, "total": INT32,
    },
}  # fmt: skip
CAPACITY = 640
TOLERANCE = 5e-6  # float32 sums of up to 600 positions and 256 values, of numbers around 1


@pytest.fixture
def library(float_library: Path) -> Path:
    """A library with each kind of float kernels."""
    return float_library


@dataclass
class Attention:
    """One operator; its caches are changed in place, as the engine binds them."""

    session: onnxruntime.InferenceSession
    heads: int

    def __call__(self, feed: dict[str, np.ndarray]) -> np.ndarray:
        binding, rows = self.session.io_binding(), feed["picked"].size if "picked" in feed else len(feed["x"])
        caches = {f"present_{part}": feed[f"past_{part}"] for part in "kv"}
        width = self.heads * feed["past_k"].shape[3]
        outputs = {"y": np.full((rows, width), np.nan, np.float32), **caches}
        for name, array in feed.items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        self.session.run_with_iobinding(binding)
        return outputs["y"]


def attention(
    library: Path, op: str, heads: int, beams: int = 1, kv_heads: int = 0, threads: int = 2, window: int = 0
) -> Attention:
    inputs = INPUTS[op]
    attributes: dict[str, Any] = {"heads": heads, "scale": 0.3, **({"beams": beams} if "Cross" in op else {})}
    attributes |= {name: size for name, size in (("kv_heads", kv_heads), ("window", window)) if size}
    node = helper.make_node(op.split()[0], list(inputs), ["y", "present_k", "present_v"], domain="hfx", **attributes)
    types = {"y": FLOAT, "present_k": inputs["past_k"], "present_v": inputs["past_v"]}
    ends = [[helper.make_tensor_value_info(name, kind, None) for name, kind in end.items()] for end in (inputs, types)]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("hfx", 1)]
    model = helper.make_model(helper.make_graph([node], "one", *ends), opset_imports=opsets, ir_version=10)
    return Attention(open_model(model, options(library, threads)), heads)


def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, bias: np.ndarray | None = None) -> np.ndarray:
    """Return softmax(q k' * scale + bias) v of one query [dim], keys and values [positions, dim]."""
    scores = k.astype(np.float64) @ q.astype(np.float64) * scale + (0 if bias is None else bias)
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum() @ v.astype(np.float64))


def caches(rows: int, heads: int, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    k, v = normal((2, rows, heads, CAPACITY, dim), seed).copy()
    return k, v


@lru_cache(4)
def normal(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def cached_feed(qkv: np.ndarray, k: np.ndarray, v: np.ndarray, last: list[int], total: int) -> dict[str, np.ndarray]:
    lead = np.array([len(last), -1, qkv.shape[1]])
    return {"x": qkv, "past_k": k, "past_v": v, "last": np.array(last, np.int32),
            "total": np.array(total, np.int32), "lead": lead}  # fmt: skip


@pytest.mark.parametrize("op", ["CachedAttention", "CachedAttentionFloat16"])
@pytest.mark.parametrize("dim", [8, 16, 24, 64, 80, 128, 256])
def test_a_step_reads_only_the_filled_part_of_the_cache(library: Path, dim: int, op: str) -> None:
    heads, last = 3, [0, 1, 15, 16, 255, 256, 257, 600]
    kept = np.float16 if "Float16" in op else np.float32
    k, v = (cache.astype(kept) for cache in caches(len(last), heads, dim))
    for row, position in enumerate(last):
        k[row, :, position:], v[row, :, position:] = np.nan, np.nan
    qkv = np.random.default_rng(1).standard_normal((len(last), 3 * heads * dim)).astype(np.float32)
    got = attention(library, op, heads)(cached_feed(qkv, k, v, last, 601)).reshape(-1, heads, dim)
    q, new_k, new_v = qkv.reshape(-1, 3, heads, dim).transpose(1, 0, 2, 3)
    for row, position in enumerate(last):
        assert np.array_equal(k[row, :, position], new_k[row].astype(kept))
        assert np.array_equal(v[row, :, position], new_v[row].astype(kept))
        assert np.isnan(k[row, :, position + 1 :]).all()
        for head in range(heads):
            want = expected(q[row, head], k[row, head, : position + 1], v[row, head, : position + 1], 0.3)
            assert np.abs(got[row, head] - want).max() < TOLERANCE


@pytest.mark.parametrize(("start", "lengths", "width"), [(0, [5, 1, 19, 40], 40), (300, [37], 37), (7, [3], 16)])
def test_a_prompt_and_a_part_of_one_are_causal(library: Path, start: int, lengths: list[int], width: int) -> None:
    heads, dim, rows = 2, 64, len(lengths)
    k, v = caches(rows, heads, dim)
    k[:, :, start:], v[:, :, start:] = np.nan, np.nan
    qkv = np.random.default_rng(1).standard_normal((rows * width, 3 * heads * dim)).astype(np.float32)
    last = [start + length - 1 for length in lengths]
    got = attention(library, "CachedAttention", heads)(cached_feed(qkv, k, v, last, start + width))
    got = got.reshape(rows, width, heads, dim)
    q = qkv.reshape(rows, width, 3, heads, dim)[:, :, 0]
    for row, length in enumerate(lengths):
        assert not got[row, length:].any(), "pads"
        for token in range(length):
            end = start + token + 1
            for head in range(heads):
                want = expected(q[row, token, head], k[row, head, :end], v[row, head, :end], 0.3)
                assert np.abs(got[row, token, head] - want).max() < TOLERANCE
        assert np.isnan(k[row, :, start + length :]).all()


@pytest.mark.parametrize("op", ["CachedAttention", "CachedAttentionFloat16"])
@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 40, 255, 256, 257, 300, 601])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2)])
def test_a_step_in_a_window_reads_nothing_before_it(
    library: Path, window: int, op: str, heads: int, kv_heads: int
) -> None:
    dim, last = 24, [0, 1, 15, 16, 255, 256, 257, 511, 512, 530, 600]
    kept = np.float16 if "Float16" in op else np.float32
    k, v = (cache.astype(kept) for cache in caches(len(last), kv_heads, dim))
    for row, position in enumerate(last):
        k[row, :, position:], v[row, :, position:] = np.nan, np.nan
        unread = max(position + 1 - window, 0) // 16 * 16  # the vectors of 16 positions that no window reaches
        k[row, :, :unread], v[row, :, :unread] = np.nan, np.nan
    qkv = np.random.default_rng(1).standard_normal((len(last), (heads + 2 * kv_heads) * dim)).astype(np.float32)
    run = attention(library, op, heads, kv_heads=kv_heads, window=window)
    got = run(cached_feed(qkv, k, v, last, 601)).reshape(-1, heads, dim)
    for row, position in enumerate(last):
        inside = slice(max(position + 1 - window, 0), position + 1)
        for head in range(heads):
            own = head * kv_heads // heads
            want = expected(qkv[row, head * dim :][:dim], k[row, own, inside], v[row, own, inside], 0.3)
            assert np.abs(got[row, head] - want).max() < TOLERANCE


@pytest.mark.parametrize("window", [1, 5, 16, 100, 256, 280])
@pytest.mark.parametrize("dim", [24, 64])
def test_tokens_in_a_window_have_the_bits_of_steps(library: Path, dim: int, window: int) -> None:
    """A prompt's tokens are computed many at a time; their windows begin in different vectors and chunks."""
    heads, kv_heads, tokens, before = 3, 1, 45, 250
    k, v = (cache.astype(np.float16) for cache in caches(1, kv_heads, dim))
    qkv = np.random.default_rng(5).standard_normal((tokens, (heads + 2 * kv_heads) * dim)).astype(np.float32)
    run = attention(library, "CachedAttentionFloat16", heads, kv_heads=kv_heads, window=window)
    together = run(cached_feed(qkv, k.copy(), v.copy(), [before + tokens - 1], before + tokens))
    for token in range(tokens):
        end = before + token + 1
        assert np.array_equal(run(cached_feed(qkv[token : token + 1], k, v, [end - 1], end))[0], together[token])


@pytest.mark.parametrize("count", [0, 1, 3, 40])
def test_picked_tokens_have_the_bits_that_they_have_among_all(library: Path, count: int) -> None:
    heads, dim, tokens, last = 3, 64, 45, [44, 20]
    picked = np.random.default_rng(0).integers(0, 21, (2, count))
    qkv = np.random.default_rng(5).standard_normal((2 * tokens, 3 * heads * dim)).astype(np.float32)
    k, v = (part.astype(np.float16) for part in caches(2, heads, dim))
    feeds = [cached_feed(qkv, k.copy(), v.copy(), last, tokens) for _ in range(2)]
    whole, some = (attention(library, f"CachedAttentionFloat16{more}", heads) for more in ("", " picked"))
    wanted = np.take_along_axis(whole(feeds[0]).reshape(2, tokens, -1), picked[:, :, None], 1)
    assert np.array_equal(some(feeds[1] | {"picked": picked}), wanted.reshape(2 * count, heads * dim))
    assert all(np.array_equal(feeds[0][name], feeds[1][name]) for name in ("past_k", "past_v"))
    with pytest.raises((errors.InvalidArgument, errors.RuntimeException, errors.Fail), match="beyond its row"):
        some.session.run(None, feeds[1] | {"picked": np.full((2, 1), tokens)})


def test_a_window_wider_than_the_cache_changes_no_bit(library: Path) -> None:
    heads, dim, last = 2, 64, [3, 40, 300, 600]
    k, v = caches(len(last), heads, dim)
    qkv = np.random.default_rng(4).standard_normal((len(last), 3 * heads * dim)).astype(np.float32)
    without, with_one = (
        attention(library, "CachedAttention", heads, window=window)(cached_feed(qkv, k.copy(), v.copy(), last, 601))
        for window in (0, 601)
    )
    assert np.array_equal(without, with_one)


def test_values_beyond_float16_are_clamped_to_its_largest(library: Path) -> None:
    k, v = (cache.astype(np.float16) for cache in caches(1, 1, 24))
    qkv = np.zeros((1, 72), np.float32)
    qkv[0, 24:30] = 1e6, -1e6, np.inf, 65520, 1e-9, np.nan
    attention(library, "CachedAttentionFloat16", 1)(cached_feed(qkv, k, v, [3], 4))
    assert np.array_equal(
        k[0, 0, 3, :6], np.array([65504, -65504, 65504, 65504, 0, np.nan], np.float16), equal_nan=True
    )


def turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Return `x` [..., dim] with channels i and i + dim / 2 turned by an angle [dim / 2]."""
    first, second = np.split(x, 2, -1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 3), (5, 1), (4, 4)])
@pytest.mark.parametrize("dim", [8, 64])
def test_heads_share_keys_that_are_turned_by_their_positions(
    library: Path, dim: int, heads: int, kv_heads: int
) -> None:
    last, generator = [0, 5, 16, 300], np.random.default_rng(6)
    angles = generator.uniform(0, 6, (400, dim // 2))
    tables = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    k, v = (cache.astype(np.float16) for cache in caches(len(last), kv_heads, dim))
    qkv = generator.standard_normal((len(last), (heads + 2 * kv_heads) * dim)).astype(np.float32)
    run = attention(library, "CachedAttentionRotaryFloat16", heads, kv_heads=kv_heads)
    got = run(cached_feed(qkv, k, v, last, 301) | tables).reshape(-1, heads, dim)
    for row, position in enumerate(last):
        angle = tables["cos"][position], tables["sin"][position]
        by_head = qkv[row].reshape(-1, dim)
        new_k = turned(by_head[heads : heads + kv_heads], *angle)
        assert np.abs(k[row, :, position] - new_k).max() < 4e-3  # a half step of float16 between 4 and 8
        for head in range(heads):
            own = head * kv_heads // heads
            rows = k[row, own, : position + 1], v[row, own, : position + 1]
            assert np.abs(got[row, head] - expected(turned(by_head[head], *angle), *rows, 0.3)).max() < TOLERANCE


@pytest.mark.parametrize(("table", "message"), [((400, 4), "tables of angles must"), ((3, 8), "too few positions")])
def test_rotary_tables_of_the_wrong_size_are_refused(library: Path, table: tuple[int, int], message: str) -> None:
    k, v = (cache.astype(np.float16) for cache in caches(1, 1, 16))
    feed = cached_feed(np.zeros((1, 64), np.float32), k, v, [3], 4) | dict.fromkeys(
        ("cos", "sin"), np.zeros(table, np.float32)
    )
    session = attention(library, "CachedAttentionRotaryFloat16", 2, kv_heads=1).session
    with pytest.raises((errors.InvalidArgument, errors.RuntimeException, errors.Fail), match=message):
        session.run(None, feed)


@pytest.mark.parametrize("shared", [True, False])
def test_a_bias_is_added_to_scores(library: Path, shared: bool) -> None:
    heads, dim, last = 2, 16, [0, 4, 20, 33]
    k, v = caches(len(last), heads, dim)
    generator = np.random.default_rng(2)
    qkv = generator.standard_normal((len(last), 3 * heads * dim)).astype(np.float32)
    bias = generator.standard_normal((1 if shared else len(last), heads, 1, 34)).astype(np.float32)
    feed = {**cached_feed(qkv, k, v, last, 34), "bias": bias}
    got = attention(library, "CachedAttentionBias", heads)(feed).reshape(-1, heads, dim)
    for row, position in enumerate(last):
        for head in range(heads):
            added = bias[0 if shared else row, head, 0, : position + 1]
            rows = k[row, head, : position + 1], v[row, head, : position + 1]
            want = expected(qkv.reshape(-1, 3, heads, dim)[row, 0, head], *rows, 0.3, added)
            assert np.abs(got[row, head] - want).max() < TOLERANCE


@pytest.mark.parametrize(("dim", "tokens"), [(64, 15), (64, 16), (24, 41), (80, 100)])
def test_the_tokens_of_a_row_have_the_bits_of_steps(library: Path, dim: int, tokens: int) -> None:
    heads, before = 3, 250
    k, v = caches(1, heads, dim)
    generator = np.random.default_rng(5)
    qkv = generator.standard_normal((tokens, 3 * heads * dim)).astype(np.float32)
    bias = generator.standard_normal((1, heads, tokens, before + tokens)).astype(np.float32)
    run = attention(library, "CachedAttentionBias", heads)
    feed = cached_feed(qkv, k.copy(), v.copy(), [before + tokens - 1], before + tokens)
    together = run(feed | {"bias": bias})
    for token in range(tokens):
        end = before + token + 1
        step = cached_feed(qkv[token : token + 1], k, v, [end - 1], end)
        assert np.array_equal(run(step | {"bias": bias[:, :, token : token + 1, :end].copy()})[0], together[token])


def cross_feed(beams: int, heads: int, dim: int, last: list[int], bytes_: bool) -> dict[str, np.ndarray]:
    generator, width = np.random.default_rng(3), heads * dim
    k, v = caches(len(last), heads, dim)
    feed = {"x": generator.standard_normal((len(last) * beams, width)).astype(np.float32)}
    feed |= {"past_k": k, "past_v": v, "last": np.array(last, np.int32), "total": np.array(max(last) + 1, np.int32)}
    if bytes_:
        feed |= {f"past_{p}": np.clip(np.rint(c * 40), -127, 127).astype(np.int8) for p, c in (("k", k), ("v", v))}
        feed |= {f"{p}_scale": generator.uniform(0.01, 0.04, (len(last), width)).astype(np.float32) for p in "kv"}
    return feed | {f"{p}_last": np.zeros((len(last), 1, width), np.float32) for p in "kv"}


@pytest.mark.parametrize("bytes_", [True, False])
@pytest.mark.parametrize("beams", [1, 2, 4, 5, 8])
@pytest.mark.parametrize("dim", [8, 64, 72])
def test_beams_of_a_row_attend_to_the_same_source(library: Path, dim: int, beams: int, bytes_: bool) -> None:
    heads, last = 2, [0, 17, 400]
    feed = cross_feed(beams, heads, dim, last, bytes_)
    before = [feed[f"past_{part}"].copy() for part in "kv"]
    got = attention(library, "CrossAttentionInt8" if bytes_ else "CrossAttention", heads, beams)(feed)
    k, v = (feed[f"past_{part}"].astype(np.float64) for part in "kv")
    if bytes_:
        k, v = (c * feed[f"{p}_scale"].reshape(len(last), heads, 1, dim) for c, p in ((k, "k"), (v, "v")))
    for row, position in enumerate(last):
        for beam in range(beams):
            for head in range(heads):
                at = row * beams + beam, slice(head * dim, (head + 1) * dim)
                want = expected(feed["x"][at], k[row, head, : position + 1], v[row, head, : position + 1], 0.3)
                assert np.abs(got[at] - want).max() < TOLERANCE
    assert all(np.array_equal(feed[f"past_{p}"], old) for p, old in zip("kv", before, strict=True))


@pytest.mark.parametrize("bytes_", [True, False])
@pytest.mark.parametrize("dim", [64, 72])
def test_many_queries_of_a_source_have_the_bits_of_few(library: Path, dim: int, bytes_: bool) -> None:
    heads, last, many, few = 2, [0, 17, 400], 105, 7
    feed = cross_feed(many, heads, dim, last, bytes_)
    run = attention(library, "CrossAttentionInt8" if bytes_ else "CrossAttention", heads)
    together, rows = run(feed).reshape(len(last), many, -1), feed["x"].reshape(len(last), many, -1)
    for first in range(0, many, few):
        part = slice(first, first + few)
        alone = run(feed | {"x": rows[:, part].reshape(len(last) * few, -1)})
        assert np.array_equal(alone.reshape(len(last), few, -1), together[:, part])


def test_tokens_that_are_turned_have_the_bits_of_steps(library: Path) -> None:
    heads, kv_heads, dim, tokens, before = 6, 2, 64, 16, 250
    k, v = (cache.astype(np.float16) for cache in caches(1, kv_heads, dim))
    generator = np.random.default_rng(5)
    qkv = generator.standard_normal((tokens, (heads + 2 * kv_heads) * dim)).astype(np.float32)
    tables = {name: generator.uniform(-1, 1, (400, dim // 2)).astype(np.float32) for name in ("cos", "sin")}
    run = attention(library, "CachedAttentionRotaryFloat16", heads, kv_heads=kv_heads)
    together = run(cached_feed(qkv, k.copy(), v.copy(), [before + tokens - 1], before + tokens) | tables)
    for token in range(tokens):
        end = before + token + 1
        step = cached_feed(qkv[token : token + 1], k, v, [end - 1], end) | tables
        assert np.array_equal(run(step)[0], together[token])


def test_a_row_alone_has_the_bits_that_it_has_beside_others(library: Path) -> None:
    heads, dim, last = 4, 64, [3, 40, 300, 16, 15, 0, 260]
    k, v = caches(len(last), heads, dim)
    qkv = np.random.default_rng(4).standard_normal((len(last), 3 * heads * dim)).astype(np.float32)
    together = attention(library, "CachedAttention", heads, threads=3)(cached_feed(qkv, k, v, last, 301))
    alone = attention(library, "CachedAttention", heads, threads=1)
    for row, position in enumerate(last):
        one = slice(row, row + 1)
        feed = cached_feed(qkv[one], k[one].copy(), v[one].copy(), [position], position + 1)
        assert np.array_equal(alone(feed), together[one])


def test_a_row_with_nan_or_infinity_spoils_no_other(library: Path) -> None:
    heads, dim, last = 2, 64, [20, 20, 20]
    k, v = caches(len(last), heads, dim)
    qkv = np.random.default_rng(4).standard_normal((len(last), 3 * heads * dim)).astype(np.float32)
    clean = attention(library, "CachedAttention", heads)(cached_feed(qkv, k.copy(), v.copy(), last, 21))
    qkv[0, 3] = np.nan
    v[2, :, 5] = np.inf
    got = attention(library, "CachedAttention", heads)(cached_feed(qkv, k, v, last, 21))
    assert np.isnan(got[0, :dim]).all()
    assert np.array_equal(got[1], clean[1])
    assert not np.isfinite(got[2]).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"last": np.array([700, 3], np.int32)}, "longer than its cache"),
        ({"last": np.array([-1, 3], np.int32)}, "longer than its cache"),
        ({"last": np.array([3], np.int32)}, "a length for each row"),
        ({"x": np.zeros((2, 100), np.float32)}, "queries don't fit"),
        ({"x": np.zeros((3, 192), np.float32)}, "queries don't fit"),
        ({"x": np.zeros((8, 192), np.float32), "total": np.array(2, np.int32)}, "total length|longer than"),
        ({"x": np.zeros((8, 192), np.float32), "total": np.array(2**31 - 1, np.int32)}, "total length|longer than"),
        ({"past_v": np.zeros((2, 4, CAPACITY, 8), np.float32)}, "differ"),
        ({"past_k": np.zeros((2, 4, CAPACITY), np.float32)}, "must be"),
    ],
)
def test_inputs_of_the_wrong_shape_or_length_are_refused(
    library: Path, change: dict[str, np.ndarray], message: str
) -> None:
    k, v = caches(2, 4, 16)
    feed = cached_feed(np.zeros((2, 192), np.float32), k, v, [3, 3], 4) | change
    session = attention(library, "CachedAttention", 4).session
    with pytest.raises((errors.InvalidArgument, errors.RuntimeException, errors.Fail), match=message):
        session.run(None, feed)


def test_a_head_has_at_most_256_values(library: Path) -> None:
    feed = cached_feed(np.zeros((1, 3 * 264), np.float32), *caches(1, 1, 264), [3], 4)
    with pytest.raises((errors.InvalidArgument, errors.RuntimeException, errors.Fail), match="1 to 256"):
        attention(library, "CachedAttention", 1).session.run(None, feed)
