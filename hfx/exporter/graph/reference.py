"""Runs a net of blocks in numpy: slowly, in float32, with one weight in memory at a time.

The output of every norm is passed to an observer, and linears are computed by a function that can be replaced. The code
is independent of the ONNX writers, and defines the meaning of the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from hfx.exporter.graph.blocks import (
    Activation,
    Attention,
    CrossAttention,
    DistanceBias,
    FeedForward,
    FloatArray,
    Layer,
    Linear,
    Net,
    Norm,
    Parameter,
    Rotary,
    Stack,
)

Observe = Callable[[Norm, FloatArray], None]
Part = Callable[[FloatArray], FloatArray]
Ids = NDArray[np.int64]

ACTIVATIONS: dict[Activation, Callable[[Any], Any]] = {
    "gelu": lambda x: x * special.ndtr(x),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x * special.expit(1.702 * x),
    "silu": lambda x: x * special.expit(x),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
}


def run_net(net: Net, ids: Ids, source: Ids | None, observe: Observe) -> FloatArray:
    """Return the last hidden state [rows, tokens, hidden] of `ids` [rows, tokens] for `source`; rows have one length.

    `observe` is called with every norm and its output.
    """
    memory = None
    if net.encoder is not None and source is not None:
        memory = StackRun(observe, np.float32(0), None).stack(net.encoder, source)
    return StackRun(observe, later_mask(ids.shape[1]), memory).stack(net.decoder, ids)


def later_mask(tokens: int) -> FloatArray:
    """Return the mask [tokens, tokens] that hides later tokens from each token when it is added to scores."""
    mask: FloatArray = np.triu(np.full((tokens, tokens), -np.inf, np.float32), 1)
    return mask


class StackRun:
    """Runs one stack; `mask` is added to the scores of its self attention, and its cross attention reads `memory`."""

    def __init__(self, observe: Observe, mask: Any, memory: FloatArray | None) -> None:
        self.observe, self.mask, self.memory = observe, mask, memory

    def stack(self, stack: Stack, ids: Ids) -> FloatArray:
        """Return the last hidden state [rows, tokens, hidden]."""
        x = self.enter(stack, ids)
        bias = self.bias(stack, ids.shape[1])
        for layer in stack.layers:
            x = self.layer(stack, layer, bias, x)
        return x if stack.final_norm is None else self._norm(x, stack.final_norm)

    def enter(self, stack: Stack, ids: Ids) -> FloatArray:
        """Return what the first layer reads [rows, tokens, hidden]."""
        rows = [stack.embedding.table.take(int(i), int(i) + 1)[0] for i in ids.reshape(-1)]
        x: FloatArray = np.stack(rows).reshape(*ids.shape, -1) * np.float32(stack.embedding.scale)
        if stack.embedding.projection is not None:
            x = self.linear(x, stack.embedding.projection)
        if stack.positions is not None:
            x = x + self._positions(stack, stack.positions, ids)
        return x if stack.embedding_norm is None else self._norm(x, stack.embedding_norm)

    def bias(self, stack: Stack, tokens: int) -> FloatArray:
        """Return what is added to the scores of self attention [tokens, tokens], or for each head."""
        bias: FloatArray = _distance_bias(stack.bias, tokens) + self.mask
        return bias

    def layer(self, stack: Stack, layer: Layer, bias: FloatArray, x: FloatArray) -> FloatArray:
        """Return the output of a layer of `stack` for its input `x`, both [rows, tokens, hidden]."""
        parts: list[Part] = [partial(self._attention, layer.attention, bias)]
        if layer.cross is not None and self.memory is not None:
            parts.append(partial(self._cross_attention, layer.cross, self.memory))
        parts.append(partial(self._feed_forward, layer.feed_forward))
        if stack.parallel:
            return sum((part(self._norm(x, norm)) for part, norm in zip(parts, layer.norms, strict=True)), start=x)
        if layer.post_norms:
            parts = [self._then(*each) for each in zip(parts, layer.post_norms, strict=True)]
        for part, norm in zip(parts, layer.norms, strict=True):
            x = x + part(self._norm(x, norm)) if stack.pre_norm else self._norm(x + part(x), norm)
        return x

    def linear(self, x: FloatArray, block: Linear) -> FloatArray:
        """Return `block` of x [..., inputs]."""
        return linear(x, block)

    def _positions(self, stack: Stack, table: Parameter, ids: Ids) -> FloatArray:
        if stack.pad_id is None:
            return table.take(0, ids.shape[1])
        others = ids != stack.pad_id
        places = np.arange(ids.shape[1]) if self.memory is not None else others.cumsum(1) - 1
        found: FloatArray = table.read()[np.where(others, places, -1)]
        return found

    def _norm(self, x: FloatArray, block: Norm) -> FloatArray:
        centred = x - x.mean(-1, keepdims=True) if block.kind == "layer" else x
        y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + block.epsilon) * block.weight.read()
        out: FloatArray = y if block.bias is None else y + block.bias.read()
        self.observe(block, out)
        return out

    def _then(self, part: Part, block: Norm) -> Part:
        """Return a function that runs `part` and then the norm `block`."""
        return lambda x: self._norm(part(x), block)

    def _attention(self, block: Attention, bias: FloatArray, x: FloatArray) -> FloatArray:
        query, key, value = np.split(self.linear(x, block.qkv), np.cumsum(block.widths[:2]), axis=-1)
        if block.head_norms is not None:
            query, key = (self._head_norm(*pair) for pair in zip((query, key), block.head_norms, strict=True))
        if block.rotary is not None:
            query, key = (_turned(each, block.rotary, block.head_dim) for each in (query, key))
        if block.kv_heads != block.heads:
            key, value = (_repeated(each, block) for each in (key, value))
        if block.window is not None:  # tokens that are further back are hidden
            bias = bias + np.tril(np.full((x.shape[1], x.shape[1]), -np.inf, np.float32), -block.window)
        return self.linear(_attended(query, key, value, block, bias), block.out)

    def _cross_attention(self, block: CrossAttention, memory: FloatArray, x: FloatArray) -> FloatArray:
        key, value = np.split(self.linear(memory, block.memory), 2, axis=-1)
        return self.linear(_attended(self.linear(x, block.query), key, value, block, np.float32(0)), block.out)

    def _feed_forward(self, block: FeedForward, x: FloatArray) -> FloatArray:
        up, function = self.linear(x, block.up), ACTIVATIONS[block.activation]
        if not block.gated:
            return self.linear(function(up), block.down)
        gate, value = np.split(up, 2, axis=-1)
        return self.linear(function(gate) * value, block.down)

    def _head_norm(self, x: FloatArray, block: Norm) -> FloatArray:
        """Return the norm `block` of each head of x [rows, tokens, heads * dim]."""
        heads = x.reshape(*x.shape[:2], -1, block.weight.shape[0])
        return self._norm(heads, block).reshape(x.shape)


def _turned(x: FloatArray, rotary: Rotary, head_dim: int) -> FloatArray:
    """Return x [rows, tokens, heads * dim] with its rotary positions applied."""
    cos, sin = (table.take(0, x.shape[1])[:, None] for table in (rotary.cos, rotary.sin))
    first, second = np.split(x.reshape(*x.shape[:2], -1, head_dim), 2, axis=-1)
    turned: FloatArray = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.reshape(x.shape)


def _repeated(x: FloatArray, block: Attention) -> FloatArray:
    """Return x [rows, tokens, kv_heads * dim] with each head repeated for the heads of Q that share it."""
    by_head = x.reshape(*x.shape[:2], block.kv_heads, block.head_dim)
    return np.repeat(by_head, block.heads // block.kv_heads, axis=2).reshape(*x.shape[:2], -1)


def _attended(
    query: FloatArray, key: FloatArray, value: FloatArray, block: Attention | CrossAttention, bias: Any
) -> FloatArray:
    q, k, v = (x.reshape(*x.shape[:2], block.heads, block.head_dim).swapaxes(1, 2) for x in (query, key, value))
    weights = special.softmax(q @ k.swapaxes(2, 3) * np.float32(block.scale) + bias, axis=-1)
    out: FloatArray = (weights @ v).swapaxes(1, 2).reshape(query.shape)
    return out


def _distance_bias(block: DistanceBias | None, width: int) -> Any:
    """Return the bias [heads, queries, keys], or 0 without `block`."""
    if block is None:
        return np.float32(0)
    distance = np.arange(width) - np.arange(width)[:, None]  # key - query
    last = block.table.shape[0] - 1
    index = distance + block.reach if last == 2 * block.reach else -distance  # an encoder's table has both directions
    rows = np.clip(index, 0, last)
    return block.table.read()[rows].transpose(2, 0, 1)


def linear(x: FloatArray, block: Linear) -> FloatArray:
    """Return `block` of x [..., inputs]."""
    rows = x.reshape(-1, x.shape[-1])  # numpy would multiply one row of x after the other, which takes twice as long
    outputs = [rows @ chunk.T for chunk in block.weight.chunks()]
    y: FloatArray = np.concatenate(outputs, axis=-1).reshape(*x.shape[:-1], -1)
    return y if block.bias is None else y + block.bias.read()
