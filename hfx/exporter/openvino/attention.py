"""Attention of each graph: to a row's own tokens over pages, with a bias by distance, to a source, and within one.

OpenVINO reads no PagedAttention from a file: standard attention stands there, named by kind and layer, and the runner
replaces it when it opens a model (python_backends/engine/openvino/model.py). PagedAttention knows no bias by
distance (T5), so that the K/V of such a decoder stand in rows of one capacity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from openvino import opset16 as ops

from hfx.exporter.graph.blocks import Attention, CrossAttention, DistanceBias, Rotary
from hfx.exporter.openvino.graph import ANY, OpenVinoGraph, Value

MASKED = -1e30  # a score that has no share beside any other


def attend_pages(
    graph: OpenVinoGraph, kind: Literal["self", "cross"], layer: int, qkv: tuple[Value, Value, Value], scale: float
) -> Value:
    """Attention of queries [tokens, width] to what is cached and to keys and values [tokens, heads * dim] beside it."""
    first = graph.const([0], np.int64)
    query, key, value = (ops.unsqueeze(part, first) for part in qkv)  # the operator wants three axes
    mask, factor = graph.const(0.0, np.float32), graph.const(scale, np.float32)
    node = ops.scaled_dot_product_attention(query, key, value, mask, factor)
    node.set_friendly_name(f"{kind}.{layer}")
    return ops.squeeze(node, first).output(0)


def attend_own_pages(
    graph: OpenVinoGraph, qkv: Value, layer: int, block: Attention, angles: tuple[Value, Value] | None = None
) -> Value:
    """Causal attention of a flat row of tokens, of as many sequences as the paging inputs say.

    `qkv` [tokens, heads of Q, K and V] to [tokens, width]. `angles` turn Q and K (see angles_at).
    """
    query, key, value = _parts(graph, qkv, block)
    if angles is not None:
        query, key = (_turned(graph, part, block.head_dim, angles) for part in (query, key))
    if block.kv_heads == block.heads:
        return attend_pages(graph, "self", layer, (query, key, value), block.scale)
    # The standard operator takes queries of no other width than the keys', and gives the values'.
    tokens = ops.gather(ops.shape_of(query), graph.const([0], np.int64), graph.const(0, np.int64))
    query = ops.reshape(query, ops.concat([tokens, graph.const([-1], np.int64)], 0), False)
    attended = attend_pages(graph, "self", layer, (query, key, value), block.scale)
    return ops.reshape(attended, graph.const([-1, block.widths[0]], np.int64), False)


def angles_at(graph: OpenVinoGraph, rotary: Rotary, positions: Value) -> tuple[Value, Value]:
    """Cosines and sines [tokens, 1, 1, head_dim / 2] of `positions` [tokens]."""
    tables = (graph.weight(table.read(), table.name) for table in (rotary.cos, rotary.sin))
    middle = graph.const([1, 2], np.int64)
    rows = (ops.gather(table, positions, graph.const(0, np.int64)) for table in tables)
    cos, sin = (ops.unsqueeze(each, middle).output(0) for each in rows)
    return cos, sin


def _turned(graph: OpenVinoGraph, x: Value, head_dim: int, angles: tuple[Value, Value]) -> Value:
    """x [tokens, heads * dim]: the first half of each head's channels and the second are turned in pairs."""
    cos, sin = angles
    halves, axis = graph.const([0, -1, 2, head_dim // 2], np.int64), graph.const(2, np.int64)
    first, second = ops.split(ops.reshape(x, halves, True), axis, 2).outputs()
    turned = [
        ops.subtract(ops.multiply(first, cos), ops.multiply(second, sin)),
        ops.add(ops.multiply(second, cos), ops.multiply(first, sin)),
    ]
    return ops.reshape(ops.concat(turned, 2), graph.const([0, -1], np.int64), True)


@dataclass
class RowSelfAttention:
    """Attention of one token a row to its row, whose scores get a bias by distance.

    The inputs past_{k,v}_{layer} [rows, heads, capacity, dim] are read as far as `positions` [rows] says. The token's
    own K and V come apart, so that no cache is copied: the runner appends what `new` collects.
    """

    graph: OpenVinoGraph
    positions: Value
    bias: DistanceBias
    new: list[Value]

    def __call__(self, qkv: Value, layer: int, block: Attention) -> Value:
        """`qkv` [rows, 3 * width] to [rows, width]."""
        graph = self.graph
        shape: list[int] = [ANY, block.heads, ANY, block.head_dim]
        past_key, past_value = (graph.input(f"past_{part}_{layer}", np.float32, shape) for part in "kv")
        one_token = graph.const([-1, block.heads, 1, block.head_dim], np.int64)
        query, key, value = (ops.reshape(part, one_token, False) for part in _parts(graph, qkv, block))
        self.new += [key, value]
        query = ops.multiply(query, graph.const(block.scale, np.float32)) if block.scale != 1.0 else query
        far = ops.add(ops.matmul(query, past_key, False, True), self._past_bias(past_key))
        near = ops.add(ops.matmul(query, key, False, True), self._own_bias())
        shares = ops.softmax(ops.concat([far, near], 3), 3)
        split = ops.variadic_split(shares, graph.const(3, np.int64), graph.const([-1, 1], np.int64))
        attended = ops.add(ops.matmul(split.output(0), past_value, False, False), ops.multiply(split.output(1), value))
        return ops.reshape(attended, graph.const([-1, block.heads * block.head_dim], np.int64), False)

    def new_kv(self, heads: int, head_dim: int) -> Value:
        """[2 * layers, rows, heads, dim]: K and V of this run's tokens, layer by layer."""
        shape = self.graph.const([1, -1, heads, head_dim], np.int64)
        return ops.concat([ops.reshape(each, shape, False) for each in self.new], 0)

    def _past_bias(self, past: Value) -> Value:
        """[rows, heads, 1, capacity], the same for all layers."""
        graph, key = self.graph, ("past bias",)
        if key not in graph.memo:
            capacity = ops.gather(ops.shape_of(past), graph.const(2, np.int64), graph.const(0, np.int64))
            keys = _count(graph, capacity)
            distance = ops.subtract(ops.unsqueeze(self.positions, graph.const([1], np.int64)), keys)
            by_head = ops.transpose(_gathered(graph, distance, self.bias), graph.const([0, 2, 1], np.int64))
            there = ops.unsqueeze(ops.greater(distance, graph.const(0, np.int64)), graph.const([1], np.int64))
            masked = ops.select(there, by_head, graph.const(MASKED, np.float32))
            graph.memo[key] = ops.unsqueeze(masked, graph.const([2], np.int64))
        return graph.memo[key]

    def _own_bias(self) -> Value:
        """[1, heads, 1, 1]: of distance 0."""
        heads = self.bias.table.shape[1]
        return self.graph.const(self.bias.table.take(0, 1).reshape(1, heads, 1, 1), np.float32)


def attend_source(graph: OpenVinoGraph, query: Value, layer: int, block: CrossAttention) -> Value:
    """Attention of all rows of a request to the request's source, whose K/V stand in blocks once.

    `query` [rows, width], row = request * beams + beam, to [rows, width]. The beams of a head are the group of query
    heads that share the head's K and V, so that one graph takes any number of beams. The operator insists on appending:
    it gets the source's last position again, which changes nothing.
    """
    width = block.heads * block.head_dim
    key, value = (graph.input(f"cross_{part}_last.{layer}", np.float32, [ANY, width]) for part in "kv")
    requests = ops.gather(ops.shape_of(key), graph.const([0], np.int64), graph.const(0, np.int64))
    by_beam = ops.concat([requests, graph.const([-1, block.heads, block.head_dim], np.int64)], 0)
    by_head = ops.concat([requests, graph.const([block.heads, -1, block.head_dim], np.int64)], 0)
    swapped = graph.const([0, 2, 1, 3], np.int64)
    groups = ops.transpose(ops.reshape(query, by_beam, False), swapped)
    flat = ops.reshape(groups, ops.concat([requests, graph.const([-1], np.int64)], 0), False)
    attended = attend_pages(graph, "cross", layer, (flat, key, value), block.scale)
    rows = ops.transpose(ops.reshape(attended, by_head, False), swapped)
    return ops.reshape(rows, graph.const([-1, width], np.int64), False)


@dataclass(frozen=True)
class EncoderAttention:
    """Attention of each token to all tokens of its source.

    `lead` is [sources, length]; `bias`, if there is one, is added to the scores [sources, heads, length, length].
    """

    graph: OpenVinoGraph
    lead: Value
    bias: Value | None

    def __call__(self, qkv: Value, layer: int, block: Attention) -> Value:
        """`qkv` [sources * length, 3 * width] to [sources * length, width]."""
        graph = self.graph
        split = ops.concat([self.lead, graph.const([block.heads, block.head_dim], np.int64)], 0)
        swapped = graph.const([0, 2, 1, 3], np.int64)
        query, key, value = (
            ops.transpose(ops.reshape(part, split, False), swapped) for part in _parts(graph, qkv, block)
        )
        mask = graph.const(0.0, np.float32) if self.bias is None else self.bias
        scale = graph.const(block.scale, np.float32)
        attended = ops.transpose(ops.scaled_dot_product_attention(query, key, value, mask, scale), swapped)
        return ops.reshape(attended, graph.const([-1, block.heads * block.head_dim], np.int64), False)


def pad_bias(graph: OpenVinoGraph, places: Value, lengths: Value) -> Value:
    """[sources, 1, 1, length]: no share for `places` [length] at or beyond a source's own of `lengths` [sources]."""
    own = ops.unsqueeze(lengths, graph.const([1, 2, 3], np.int64))
    return ops.select(ops.less(places, own), graph.const(0.0, np.float32), graph.const(MASKED, np.float32))


def source_bias(graph: OpenVinoGraph, length: Value, block: DistanceBias) -> Value:
    """[1, heads, length, length] for an encoder; `length` is a scalar int64."""
    place = _count(graph, length)
    distance = ops.subtract(place, ops.unsqueeze(place, graph.const([1], np.int64)))
    shifted = ops.add(distance, graph.const(block.reach, np.int64))
    by_head = ops.transpose(_gathered(graph, shifted, block), graph.const([2, 0, 1], np.int64))
    return ops.unsqueeze(by_head, graph.const([0], np.int64))


def _gathered(graph: OpenVinoGraph, index: Value, block: DistanceBias) -> Value:
    inside = ops.clamp(index, 0, block.table.shape[0] - 1)
    table = graph.weight(block.table.read(), block.table.name)
    return ops.gather(table, inside, graph.const(0, np.int64))


def _count(graph: OpenVinoGraph, stop: Value) -> Value:
    return ops.range(graph.const(0, np.int64), stop, graph.const(1, np.int64), "i64")


def _parts(graph: OpenVinoGraph, qkv: Value, block: Attention) -> list[Value]:
    """Q, K and V."""
    split = ops.variadic_split(qkv, graph.const(1, np.int64), graph.const(block.widths, np.int64))
    return [split.output(part) for part in range(3)]
