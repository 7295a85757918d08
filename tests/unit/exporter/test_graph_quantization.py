"""Arithmetic of the weight formats, and the weight file: each tensor once, aligned, and of its stated size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from hfx.exporter.graph import blocks, panels
from hfx.exporter.graph.blocks import constant, joined
from hfx.exporter.graph.writer import ALIGNMENT, WeightFile
from hfx.exporter.quantize.generator import ALL_LEVELS, FOUR_LEVELS, int4_blocks, int8_rows

MATRIX = np.random.default_rng(0).standard_normal((37, 50)).astype(np.float32)


def test_int8_rows_use_all_levels_and_round_to_the_nearest() -> None:
    values, scale = int8_rows(MATRIX, ALL_LEVELS)
    assert (np.abs(values).max(1) == 127).all()
    assert np.abs(values * scale[:, None] - MATRIX).max() <= scale.max() / 2 * 1.001


@pytest.mark.parametrize("inputs", [1, 6, 8, 50, 64])
@pytest.mark.parametrize("sign", [1, -1])
def test_equally_signed_weights_of_four_inputs_add_up_to_at_most_128(inputs: int, sign: int) -> None:
    rows = np.random.default_rng(1).standard_normal((200, inputs)).astype(np.float32)
    rows[:100] = sign * np.abs(rows[:100])
    values, scale = int8_rows(rows, FOUR_LEVELS)
    padded = np.zeros((200, -(-inputs // 8), 2, 2, 2), np.int32)  # of inputs 8 i + 4 j + 2 k + l
    padded.reshape(200, -1)[:, :inputs] = values
    sums = np.stack([np.maximum(part, 0).sum(axis=(2, 4)).max(axis=(1, 2)) for part in (padded, -padded)]).max(axis=0)
    assert ((sums >= 124) & (sums <= 128)).all()
    assert (np.abs(values * scale[:, None] - rows) <= scale[:, None] / 2 * 1.001).all()


@pytest.mark.parametrize("inputs", [1, 3, 8, 65, 384, 769])
def test_onnx_runtime_multiplies_weights_whose_pairs_add_up_to_128(inputs: int) -> None:
    """Without VNNI, it adds the products of neighbouring inputs in 16 bits."""
    random = np.random.default_rng(inputs)
    low, signs = (random.integers(*limits, (-(-inputs // 2), 33)) for limits in ((0, 129), (0, 2)))
    pairs = np.stack([low, 128 - low], axis=1) * np.where(signs, 1, -1)[:, None]
    weights = np.clip(pairs.reshape(-1, 33)[:inputs], -128, 127).astype(np.int8)
    node = helper.make_node("MatMulInteger", ["x", "weights", "zero"], ["y"])
    ends = [
        helper.make_tensor_value_info(name, kind, [None, size])
        for name, kind, size in (("x", TensorProto.UINT8, inputs), ("y", TensorProto.INT32, 33))
    ]
    constants = [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(np.array(128, np.uint8), "zero")]
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for count in (1, 2, 4, 7, 13):
        x = random.choice(np.array([0, 255], np.uint8), (count, inputs))
        x[0] = 255
        [found] = session.run(None, {"x": x})
        assert np.array_equal(found, (x.astype(np.int64) - 128) @ weights)


def test_a_row_of_zeros_stays_zero() -> None:
    values, scale = int8_rows(np.zeros((2, 8), np.float32), 127)
    assert not values.any() and np.isfinite(scale).all()


@pytest.mark.parametrize("halves", [1, 2])
def test_panels_are_the_rows_in_another_order(halves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "PANELS_A_PIECE", 1)
    weight = np.random.default_rng(3).standard_normal((140, 70)).astype(np.float32)
    pieces = list(panels.Int8(127).packed(constant("m", weight), halves))
    found = np.concatenate([values for values, _ in pieces])
    want, want_scale = int8_rows(weight, 127)
    shapes = (4 if halves == 2 else 3, 32, 64, 4), (140,)
    assert (found.shape, want_scale.shape) == panels.Int8(127).shapes(constant("m", weight), halves) == shapes
    by_row = found.transpose(0, 2, 1, 3).reshape(halves, -1, 128)
    assert np.array_equal(by_row[:, : 140 // halves, :70].reshape(140, 70), want)
    assert not by_row[:, 140 // halves :].any() and not by_row[..., 70:].any()
    assert np.array_equal(np.concatenate([scale for _, scale in pieces]), want_scale)


@pytest.mark.parametrize("block", [16, 32])
def test_four_bits_have_a_scale_a_block(block: int) -> None:
    values, scale = int4_blocks(MATRIX, block)
    assert values.shape == MATRIX.shape and scale.shape == (37, -(-50 // block))
    assert (values.min(), values.max()) == (-8, 7)
    of_columns = scale.repeat(block, axis=1)[:, :50]
    # The least scale that is tried, before it is fitted, is 0.8 of the one that reaches the peak: the peak is cut from
    # 10 steps to 8, and the value opposite to it to 7.
    assert (np.abs(values * of_columns - MATRIX) <= 3.2 * np.abs(of_columns)).all()


@pytest.mark.parametrize("block", [16, 32, 128])
def test_a_scale_of_four_bits_has_at_most_the_weighted_error_of_the_peaks(block: int) -> None:
    rows = np.random.default_rng(1).standard_t(4, (20, 256)).astype(np.float32)
    values, scale = int4_blocks(rows, block)
    grouped = rows.reshape(20, -1, block).astype(np.float64)
    extreme = np.take_along_axis(grouped, np.abs(grouped).argmax(-1)[..., None], -1) / -8
    usual = np.rint(grouped / extreme).clip(-8, 7) * extreme

    def error(found: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        return np.asarray((np.abs(grouped) * (found.reshape(grouped.shape) - grouped) ** 2).sum(-1))

    assert (error(values * scale.repeat(block, axis=1)) <= error(usual) * (1 + 1e-5)).all()


def test_the_scales_of_four_bits_follow_the_size_of_the_weights() -> None:
    values, scale = int4_blocks(MATRIX, 32)
    for power in (-100, 100):
        found, found_scale = int4_blocks(np.ldexp(MATRIX, power), 32)
        assert np.array_equal(found, values) and np.array_equal(found_scale, np.ldexp(scale, power))
    values, scale = int4_blocks(np.zeros((2, 40), np.float32), 32)
    assert not values.any() and not scale.any()


@pytest.mark.parametrize(("block", "halves"), [(16, 1), (32, 2), (128, 1)])
def test_panels_of_four_bits_are_the_rows_in_another_order(
    block: int, halves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panels, "PANELS_A_PIECE", 1)
    weight = np.random.default_rng(3).standard_normal((140, 70)).astype(np.float32)
    pieces = list(panels.Int4(block).packed(constant("m", weight), halves))
    found, scales = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    assert (found.shape, scales.shape) == panels.Int4(block).shapes(constant("m", weight), halves)
    of_bytes = np.stack([found << 4, found & 0xF0], axis=3).view(np.int8) >> 4  # [panels, depth / 8, 64, 2, 4]
    by_row = of_bytes.transpose(0, 2, 1, 3, 4).reshape(halves, -1, 128)
    want, want_scale = int4_blocks(weight, block)
    assert np.array_equal(by_row[:, : 140 // halves, :70].reshape(140, 70), want)
    assert not by_row[:, 140 // halves :].any() and not by_row[..., 70:].any()
    by_output = scales.transpose(0, 2, 1).reshape(halves, -1, 128 // block)[:, : 140 // halves]
    assert np.array_equal(by_output[..., : want_scale.shape[1]].reshape(140, -1), want_scale)


def test_joined_parameters_are_read_across_their_borders() -> None:
    whole = joined("ab", [constant("a", MATRIX[:10]), constant("b", MATRIX[10:])])
    assert whole.shape == MATRIX.shape
    for start, stop in ((0, 37), (0, 10), (8, 12), (10, 11), (36, 37)):
        assert np.array_equal(whole.take(start, stop), MATRIX[start:stop])


def test_chunks_cover_a_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "CHUNK_BYTES", 1)
    pieces = list(constant("m", MATRIX).scaled(2).rows(3, 9).chunks())
    assert len(pieces) == 6
    assert np.array_equal(np.concatenate(pieces), 2 * MATRIX[3:9])


# The file of weights


def offset(tensor: Any) -> int:
    return int(tensor.external_data[1].value)


def test_tensors_are_written_in_pieces_at_aligned_offsets(tmp_path: Path) -> None:
    first, second = np.arange(7, dtype=np.int8), np.arange(12, dtype=np.float32).reshape(4, 3)
    with WeightFile(tmp_path / "w.bin") as weights:
        a = weights.add("a", np.int8, (7,), lambda: [first[:3], first[3:]])
        b = weights.add("b", np.float32, (4, 3), lambda: [second[:1], second[1:]])
    content = (tmp_path / "w.bin").read_bytes()
    assert offset(a) == 0 and offset(b) == ALIGNMENT
    assert content[:7] == first.tobytes() and content[ALIGNMENT:] == second.tobytes()
    assert b.external_data[0].value == "w.bin"


def test_a_weight_added_twice_is_written_once(tmp_path: Path) -> None:
    calls = []

    def pieces() -> Iterator[NDArray[np.float32]]:
        calls.append(1)
        yield np.ones(3, np.float32)

    with WeightFile(tmp_path / "w.bin") as weights:
        assert weights.add("a", np.float32, (3,), pieces) is weights.add("a", np.float32, (3,), pieces)
    assert len(calls) == 1


def test_pieces_that_do_not_fill_the_shape_are_an_error(tmp_path: Path) -> None:
    with WeightFile(tmp_path / "w.bin") as weights, pytest.raises(ValueError, match="12 bytes"):
        weights.add("a", np.float32, (4,), lambda: [np.ones(3, np.float32)])
