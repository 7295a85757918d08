"""Biases of attention scores by the distance of key and query, gathered once a run for all layers.

The table ends where all further distances share a value, so that no length is built into a graph.
"""

from __future__ import annotations

import numpy as np

from hfx.exporter.graph.blocks import DistanceBias
from hfx.exporter.graph.writer import GraphWriter, Value


def source_bias(writer: GraphWriter, width: Value, block: DistanceBias) -> Value:
    """[1, heads, width, width] for an encoder; `width` is a scalar int64."""
    place = count(writer, width)
    keys_minus_queries = writer.node("Sub", [place, _column(writer, place)])
    shifted = writer.node("Add", [keys_minus_queries, writer.const(block.reach, np.int64)])
    by_pair = _gathered(writer, shifted, block, 2 * block.reach)
    by_head = writer.node("Transpose", [by_pair], perm=[2, 0, 1])
    return writer.node("Unsqueeze", [by_head, writer.const([0], np.int64)])


def step_bias(writer: GraphWriter, positions: Value, total_length: Value, block: DistanceBias) -> Value:
    """[rows, heads, 1, total_length] for one token a row, at `positions` [rows]."""
    keys = count(writer, writer.cast(total_length, np.int64))
    distance = writer.node("Sub", [_column(writer, positions), keys])
    by_key = _gathered(writer, distance, block, block.reach)
    by_head = writer.node("Transpose", [by_key], perm=[0, 2, 1])
    return writer.node("Unsqueeze", [by_head, writer.const([2], np.int64)])


def count(writer: GraphWriter, stop: Value) -> Value:
    """0, 1, ..., stop - 1."""
    return writer.node("Range", [writer.const(0, np.int64), stop, writer.const(1, np.int64)])


def _column(writer: GraphWriter, values: Value) -> Value:
    return writer.node("Unsqueeze", [values, writer.const([1], np.int64)])


def _gathered(writer: GraphWriter, index: Value, block: DistanceBias, last: int) -> Value:
    inside = writer.node("Clip", [index, writer.const(0, np.int64), writer.const(last, np.int64)])
    return writer.node("Gather", [writer.vector(block.table), inside])
