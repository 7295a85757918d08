"""Writes attention: causal over a cache, bidirectional, and to an encoder's output; and biases by distance.

Each row has a length of its own and there is no mask. The number of rows and the cache's capacity are set at run time.
The encoder's K and V for the cross attention are stored as floats or in int8. In int8 every channel of every source has
a scale of its own, so that a request's precision does not depend on the other rows of its batch. The decoder multiplies
queries by the scales of K, and the attended values by the scales of V. Nothing else changes, and a decode step reads a
quarter of the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hfx.exporter.graph import operators
from hfx.exporter.graph.blocks import Attention, CrossAttention, DistanceBias, Norm
from hfx.exporter.graph.norms import norm
from hfx.exporter.graph.writer import CONTRIB, FloatType, GraphWriter, Shape, Value
from hfx.exporter.quantize.generator import CrossType, KvType

SEQLENS_K, TOTAL_LENGTH = "seqlens_k", "total_length"
SOURCE_SEQLENS_K, SOURCE_TOTAL_LENGTH = "source_seqlens_k", "source_total_length"
FLOATS: Mapping[str, FloatType] = {"float32": np.float32, "float16": np.float16}
TYPES: Mapping[str, type[np.generic]] = {**FLOATS, "int8": np.int8}
LEVELS = 127
TINY = 1e-12  # the least peak of a channel, as a channel of zeros would have a scale of 0
NATIVE_STEP = 16  # in an encoder, hfx/native supports head sizes that are multiples of this


def lengths(writer: GraphWriter, rows: str, seqlens: Value = SEQLENS_K, total: Value = TOTAL_LENGTH) -> None:
    """Add the inputs with the length of each row (minus 1) and the length of the longest row."""
    writer.input(seqlens, np.int32, [rows])
    writer.input(total, np.int32, [])


@dataclass(frozen=True)
class SelfAttentionWriter:
    """Writes the self attention of one graph. `lead` is the shape [rows, sequence, -1] that splits [tokens, width].

    `kept` is the type of the KV cache. Only native operators without a bias support a float16 cache beside products in
    float32.
    """

    writer: GraphWriter
    lead: Value
    bias: Value | None
    kept: KvType = "float32"

    def cached(self, qkv: Value, layer: int, block: Attention, last: Value | None = None) -> Value:
        """Write causal attention that reads past_* and writes present_*, which the caller binds to the same memory.

        It takes whole prompts without a past (sequence = total length, right-padded), one token a row on a past, or,
        for one row at a time, a chunk of several tokens on a past. The result has all tokens, or those that `last`
        names (see `picked`).
        """
        writer, dtype = self.writer, FLOATS[self.kept]
        shape: Shape = ["rows", block.kv_heads, "capacity", block.head_dim]
        past = [writer.input(f"past_{part}_{layer}", dtype, shape) for part in "kv"]
        present = [f"present_{part}_{layer}" for part in "kv"]
        if block.head_norms is not None:
            qkv = self._with_normed_heads(qkv, block, *block.head_norms)
        is_grouped = block.rotary is not None or block.kv_heads != block.heads or block.window is not None
        if (is_grouped or writer.compute is np.float16) and dtype is writer.compute:
            out = self._grouped(qkv, past, present, block)
        elif dtype is not writer.compute:  # the operator itself picks the tokens
            out, last = self._native(qkv, past, present, block, last), None
        else:
            out = self._native(qkv, past, present, block)
        for name in present:
            writer.output(name, dtype, shape, name)
        return out if last is None else self.picked(out, last)

    def picked(self, hidden: Value, last: Value) -> Value:
        """Return the rows of `hidden` [tokens, width] that `last` [rows, picked] names in each row of the batch."""
        writer = self.writer
        index = writer.node("Unsqueeze", [last, writer.const([-1], np.int64)])
        by_row = writer.node("Reshape", [hidden, self.lead])
        return writer.node("Flatten", [writer.node("GatherND", [by_row, index], batch_dims=1)], axis=2)

    def _with_normed_heads(self, qkv: Value, block: Attention, *norms: Norm) -> Value:
        """Return `qkv` after the norms of each head of Q and K, which are computed in float32."""
        writer, counts = self.writer, [block.heads, block.kv_heads, block.kv_heads]
        wide = qkv if writer.compute is np.float32 else writer.cast(qkv, np.float32)
        by_head = writer.node("Reshape", [wide, writer.const([-1, sum(counts), block.head_dim], np.int64)])
        parts = [writer.unique(part) for part in "qkv"]
        writer.nodes("Split", [by_head, writer.const(counts, np.int64)], parts, axis=1)
        normed = [norm(writer, part, each, np.float32) for part, each in zip(parts, norms, strict=False)]
        joined = writer.node("Concat", [*normed, parts[-1]], axis=1)
        flat = writer.node("Reshape", [joined, writer.const([-1, sum(block.widths)], np.int64)])
        return flat if writer.compute is np.float32 else writer.cast(flat, writer.compute)

    def _native(
        self, qkv: Value, past: Sequence[Value], present: Sequence[Value], block: Attention, last: Value | None = None
    ) -> Value:
        """Write causal attention as an operator of hfx/native.

        If caches have the type of the products, the graph also gets the operator's definition, for sessions without
        hfx/native.
        """
        writer, rotary = self.writer, block.rotary
        inputs = [qkv, *past, SEQLENS_K, TOTAL_LENGTH, self.lead, *([self.bias] if self.bias else [])]
        attributes: dict[str, int | float] = {"heads": block.heads, "scale": block.scale}
        op = "CachedAttentionBias" if self.bias else "CachedAttention"
        if rotary is not None:
            op = "CachedAttentionRotary"
            inputs += [writer.vector(table) for table in (rotary.cos, rotary.sin)]
        if rotary is not None or block.kv_heads != block.heads:
            attributes["kv_heads"] = block.kv_heads
        if block.window is not None:
            attributes["window"] = block.window
        if FLOATS[self.kept] is writer.compute:
            writer.defined(op, operators.function)
        else:
            op += "Float16"
            inputs += [last] if last else []
        out = writer.unique("attended")
        writer.nodes(op, inputs, [out, *present], operators.DOMAIN, **attributes)
        return out

    def _grouped(self, qkv: Value, past: Sequence[Value], present: Sequence[Value], block: Attention) -> Value:
        """Write causal attention as ONNX Runtime's operator, which derives each token's position from the lengths."""
        writer, rotary = self.writer, block.rotary
        windows = {} if block.window is None else {"local_window_size": block.window}
        tables = [None, None] if rotary is None else [writer.vector(table) for table in (rotary.cos, rotary.sin)]
        inputs = [*past, SEQLENS_K, TOTAL_LENGTH, *tables, None, self.bias]
        do_rotary = 0 if rotary is None else 1
        return self._by_onnxruntime(qkv, inputs, present, block, do_rotary=do_rotary, causal=1, **windows)

    def _by_onnxruntime(
        self, qkv: Value, inputs: Sequence[Value | None], present: Sequence[Value], block: Attention, **settings: int
    ) -> Value:
        """Write ONNX Runtime's operator, with `inputs` after Q, K and V, and `present` after the output."""
        writer = self.writer
        split = writer.node("Reshape", [qkv, self.lead])
        out = writer.unique("attended")
        writer.nodes(
            "GroupQueryAttention",
            [split, None, None, *inputs],
            [out, *present],
            CONTRIB,
            num_heads=block.heads,
            kv_num_heads=block.kv_heads,
            scale=block.scale,
            **settings,
        )
        return writer.node("Reshape", [out, writer.const([-1, block.widths[0]], np.int64)])

    def bidirectional(self, qkv: Value, block: Attention) -> Value:
        """Write the attention of each token to all tokens of its row, except padding on the right."""
        writer = self.writer
        inputs = [qkv, SEQLENS_K, TOTAL_LENGTH, self.lead, *([self.bias] if self.bias else [])]
        op = "SourceAttentionBias" if self.bias else "SourceAttention"
        if block.head_dim % NATIVE_STEP == 0 and writer.compute is np.float32:
            writer.defined(op, operators.function)
            return writer.node(op, inputs, operators.DOMAIN, heads=block.heads, scale=block.scale)
        if writer.compute is np.float16 and not self.bias:
            return self._between_all(qkv, block)
        # CUDA's operator requires the outputs of keys and values by head, although nothing reads them.
        unread = [writer.unique(name) for name in ("present_k", "present_v") if writer.compute is np.float16]
        others = [None, None, SEQLENS_K, TOTAL_LENGTH, None, None, None, self.bias]
        return self._by_onnxruntime(qkv, others, unread, block, do_rotary=0, causal=0)

    def _between_all(self, qkv: Value, block: Attention) -> Value:
        """Write the attention of each token to all tokens of its row, by an operator that gets the rows' lengths.

        GroupQueryAttention is not used: without a bias it is computed on CUDA by flash attention (ONNX Runtime 1.31.1),
        which gets the width of the batch in the place of the lengths, so that tokens would attend to padding.
        """
        writer = self.writer
        parts = [writer.unique(part) for part in "qkv"]
        split = writer.node("Reshape", [qkv, self.lead])
        writer.nodes("Split", [split], parts, axis=-1, num_outputs=3)
        lengths = writer.node("Add", [SEQLENS_K, writer.const([1], np.int32)])
        out = writer.unique("attended")
        heads: dict[str, int | float] = {"num_heads": block.heads, "scale": block.scale}
        writer.nodes("MultiHeadAttention", [*parts, None, lengths], [out], CONTRIB, **heads)
        return writer.node("Reshape", [out, writer.const([-1, block.widths[0]], np.int64)])


@dataclass(frozen=True)
class CrossAttentionWriter:
    """Writes the attention of `beams` rows a request to the request's source; its K and V are cached once a request."""

    writer: GraphWriter
    beams: int
    kept: CrossType

    def __call__(self, query: Value, layer: int, block: CrossAttention) -> Value:
        """Return the attended values of `query` [rows, heads * dim], in its shape; row = request * beams + beam."""
        writer, width = self.writer, block.heads * block.head_dim
        dtype = TYPES[self.kept]
        shape: Shape = ["requests", block.heads, "source_capacity", block.head_dim]
        last = [writer.input(f"cross_{part}_last_{layer}", writer.compute, ["requests", 1, width]) for part in "kv"]
        past = [writer.input(f"cross_{part}_{layer}", dtype, shape) for part in "kv"]
        scales: list[Value] = []
        if self.kept not in FLOATS:
            scales = [writer.input(f"cross_{part}_scale_{layer}", np.float32, ["requests", width]) for part in "kv"]
        present = [f"cross_present_{part}_{layer}" for part in "kv"]
        out = writer.unique("attended")
        if self.beams == 1 and writer.compute is np.float16:
            # The function's transposes would move nothing, but each is a launch on a GPU.
            split = writer.node("Reshape", [query, writer.const([-1, 1, width], np.int64)])
            inputs = [split, *last, *past, SOURCE_SEQLENS_K, SOURCE_TOTAL_LENGTH]
            heads = {"num_heads": block.heads, "kv_num_heads": block.heads, "scale": block.scale}
            writer.nodes("GroupQueryAttention", inputs, [out, *present], CONTRIB, **heads)
            attended = writer.node("Reshape", [out, writer.const([-1, width], np.int64)])
        else:
            (attended, *_) = writer.nodes(
                writer.defined("CrossAttentionInt8" if scales else "CrossAttention", operators.function),
                [query, *past, SOURCE_SEQLENS_K, *scales, *last, SOURCE_TOTAL_LENGTH],
                [out, *present],
                operators.DOMAIN,
                heads=block.heads,
                query_heads=block.heads * self.beams,
                head_dim=block.head_dim,
                beams=self.beams,
                scale=block.scale,
            )
        for name in present:
            writer.output(name, dtype, shape, name)
        return attended


def source_bias(writer: GraphWriter, width: Value, block: DistanceBias) -> Value:
    """Return an encoder's bias [1, heads, width, width]; `width` is a scalar int64."""
    place = count(writer, width)
    queries = writer.node("Unsqueeze", [place, writer.const([1], np.int64)])
    keys_minus_queries = writer.node("Sub", [place, queries])
    shifted = writer.node("Add", [keys_minus_queries, writer.const(block.reach, np.int64)])
    by_pair = _gathered(writer, shifted, block, 2 * block.reach)
    by_head = writer.node("Transpose", [by_pair], perm=[2, 0, 1])
    return writer.node("Unsqueeze", [by_head, writer.const([0], np.int64)])


def step_bias(writer: GraphWriter, positions: Value, total_length: Value, block: DistanceBias) -> Value:
    """Return the bias [rows, heads, sequence, total_length] of the tokens at `positions` [rows, sequence]."""
    if writer.compute is np.float16:  # on a GPU, Range reads its limit in host memory, but Cast can't
        keys = writer.cast(count(writer, total_length, np.int32), np.int64)
    else:
        keys = count(writer, writer.cast(total_length, np.int64))
    distance = writer.node("Sub", [writer.node("Unsqueeze", [positions, writer.const([-1], np.int64)]), keys])
    return writer.node("Transpose", [_gathered(writer, distance, block, block.reach)], perm=[0, 3, 1, 2])


def count(writer: GraphWriter, stop: Value, dtype: type[np.integer[Any]] = np.int64) -> Value:
    """Return the integers 0, 1, ..., stop - 1; `stop` is a scalar of the type `dtype`."""
    return writer.node("Range", [writer.const(0, dtype), stop, writer.const(1, dtype)])


def _gathered(writer: GraphWriter, index: Value, block: DistanceBias, last: int) -> Value:
    inside = writer.node("Clip", [index, writer.const(0, np.int64), writer.const(last, np.int64)])
    return writer.node("Gather", [writer.vector(block.table), inside])


@dataclass(frozen=True)
class SourceMemoryWriter:
    """Writes the outputs cross_{i}: K and V of each source for decoder layer i. `lead` is [requests, source, -1].

    In float16, for GPUs, the outputs are [2, requests, heads, source, head_dim]: K and V in the layout of the cache to
    which they are copied on the device. Otherwise they are [requests, source, K and V]. In int8 there are outputs
    cross_scale_{i} too.
    """

    writer: GraphWriter
    lead: Value
    kept: CrossType

    def without_pads(self, hidden: Value, places: Value) -> Value:
        """Return `hidden` [tokens, width] with the last token of each source in the place of its pads.

        The hidden state of a pad depends on the width of the batch; without this it could be the peak of a channel.
        `places` [requests, source] are the positions. Only int8 needs it.
        """
        if self.kept in FLOATS:
            return hidden
        writer = self.writer
        last = writer.cast(writer.node("Unsqueeze", [SEQLENS_K, writer.const([1], np.int64)]), np.int64)
        index = writer.node("Unsqueeze", [writer.node("Min", [places, last]), writer.const([2], np.int64)])
        by_source = writer.node("GatherND", [writer.node("Reshape", [hidden, self.lead]), index], batch_dims=1)
        flat = writer.node(
            "Concat", [writer.const([-1], np.int64), writer.node("Shape", [hidden], start=1, end=2)], axis=0
        )
        return writer.node("Reshape", [by_source, flat])

    def __call__(self, layer: int, memory: Value, heads: int, head_dim: int) -> None:
        """Write the outputs of `layer` from `memory` [tokens, 2 * heads * head_dim]: K, then V, of each position."""
        writer = self.writer
        by_source = writer.node("Reshape", [memory, self.lead])
        name = f"cross_{layer}"
        if self.kept == "float16":
            parts = writer.node("Reshape", [by_source, writer.const([0, 0, 2, heads, head_dim], np.int64)])
            by_part = writer.node("Transpose", [parts], perm=[2, 0, 3, 1, 4])
            writer.output(name, np.float16, [2, "requests", heads, "source", head_dim], by_part)
            return
        width = 2 * heads * head_dim
        shape: Shape = ["requests", "source", width]
        if self.kept == "float32":
            writer.output(name, np.float32, shape, by_source)
            return
        peak = writer.node("ReduceMax", [writer.node("Abs", [by_source]), writer.const([1], np.int64)], keepdims=1)
        least = writer.node("Max", [peak, writer.const(TINY, np.float32)])
        scale = writer.node("Mul", [least, writer.const(1 / LEVELS, np.float32)])
        steps = writer.node("Div", [by_source, scale])
        kept = writer.node("QuantizeLinear", [steps, writer.const(1.0, np.float32), writer.const(0, np.int8)])
        writer.output(name, np.int8, shape, kept)
        by_channel = writer.node("Squeeze", [scale, writer.const([1], np.int64)])
        writer.output(f"cross_scale_{layer}", np.float32, ["requests", width], by_channel)
