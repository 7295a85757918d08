"""The graphs of a generator, with the inputs and outputs that the engine binds.

`decoder_graph` runs the prefill and the decode steps of decoder-only models. Models with an encoder have an
`encoder_graph`, and a `step_graph` for each number of beams. Two graphs without weights compute log-softmax and the
best k of rows of scores; for GPUs, another does both and edits scores between them.

Activations are [tokens, hidden]. On the CPU a residual addition stays a node of its own: onnxruntime's
SkipLayerNormalization took 4 to 6 times as long as Add and LayerNormalization (8 to 512 rows of 768), and its operator
for root-mean-square norms 1.3 to 2 times. onnxruntime itself fuses the two nodes only if activations have three axes;
here they have two. On a GPU, where each node is a launch, they are fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from hfx.exporter.graph import operators
from hfx.exporter.graph.attention import (
    SOURCE_SEQLENS_K,
    SOURCE_TOTAL_LENGTH,
    TOTAL_LENGTH,
    CrossAttentionWriter,
    SelfAttentionWriter,
    SourceMemoryWriter,
    count,
    lengths,
    source_bias,
    step_bias,
)
from hfx.exporter.graph.blocks import Attention, CrossAttention, Linear, Net, Norm, Stack
from hfx.exporter.graph.linear import FLOAT_TYPES, HeadWriter, LinearWriter
from hfx.exporter.graph.norms import norm, skip_norm
from hfx.exporter.graph.writer import FloatType, GraphWriter, Value, WeightFile
from hfx.exporter.mixed_precision import FINER
from hfx.exporter.quantize.generator import Formats, WeightFormat

SelfAttend = Callable[[Value, int, Attention], Value]
CrossAttend = Callable[[Value, int, CrossAttention], Value]


@dataclass(frozen=True)
class GeneratorWriter:
    """Writes the graphs of `net` in `formats`; all graphs share the file `weights`."""

    net: Net
    formats: Formats
    levels: int
    weights: WeightFile

    def decoder_graph(self, path: Path) -> None:
        """Write the graph of a decoder-only model, for prompts (right-padded, no past) and for tokens on a past.

        The outputs have one row for each position in `last_index` of each row. No other row is computed beyond the last
        layer's attention, whose keys and values all rows need.
        """
        stack, writer = self.net.decoder, self._writer("decoder")
        ids = writer.input("input_ids", np.int64, ["rows", "sequence"])
        positions = writer.input("position_ids", np.int64, ["rows", "sequence"])
        lengths(writer, "rows")
        last = writer.input("last_index", np.int64, ["rows", "picked"])
        attention = SelfAttentionWriter(writer, _lead(writer, ids), None, self.formats.kv)

        def attend(qkv: Value, layer: int, block: Attention) -> Value:
            return attention.cached(qkv, layer, block, last if layer + 1 == len(stack.layers) else None)

        layers = replace(self._stack(writer, self.formats.linear, attend), pick=partial(attention.picked, last=last))
        self._head(writer, layers(stack, _flat(writer, ids), _flat(writer, positions)))
        writer.save(path)

    def encoder_graph(self, path: Path, stack: Stack) -> None:
        """Write the graph from sources (right-padded) to K and V of each decoder layer: cross_{i} (SourceMemoryWriter).

        In int8 it also has their scales, cross_scale_{i} [requests, 2 * heads * dim].
        """
        writer = self._writer("encoder")
        ids = writer.input("input_ids", np.int64, ["requests", "source"])
        lengths(writer, "requests")
        lead = _lead(writer, ids)
        shape = writer.node("Shape", [ids])
        width = writer.node("Gather", [shape, writer.const(1, np.int64)])
        places = writer.node("Expand", [count(writer, width), shape])
        bias = source_bias(writer, width, stack.bias) if stack.bias else None
        attention = SelfAttentionWriter(writer, lead, bias)

        def attend(qkv: Value, layer: int, block: Attention) -> Value:
            return attention.bidirectional(qkv, block)

        layers = self._stack(writer, self.formats.encoder, attend)
        counted = places if stack.pad_id is None else _without_pads(writer, ids, stack.pad_id)
        hidden = layers(stack, _flat(writer, ids), _flat(writer, counted))
        keep = SourceMemoryWriter(writer, lead, self.formats.cross)
        hidden = keep.without_pads(hidden, places)
        for index, layer in enumerate(self.net.decoder.layers):
            if layer.cross is not None:
                keep(index, layers.linear(hidden, layer.cross.memory), layer.cross.heads, layer.cross.head_dim)
        writer.save(path)

    def step_graph(self, path: Path, beams: int) -> None:
        """Write the graph of a decode step of a model with an encoder: one token a row, `beams` rows a request.

        On native operators, each row may have any number of tokens, with outputs for all of them, row by row.
        """
        stack, writer = self.net.decoder, self._writer(f"decoder_{beams}")
        ids = writer.input("input_ids", np.int64, ["rows", "sequence"])
        positions = writer.input("position_ids", np.int64, ["rows", "sequence"])
        lengths(writer, "rows")
        lengths(writer, "requests", SOURCE_SEQLENS_K, SOURCE_TOTAL_LENGTH)
        bias = step_bias(writer, positions, TOTAL_LENGTH, stack.bias) if stack.bias else None
        attention = SelfAttentionWriter(writer, _lead(writer, ids), bias, self.formats.kv)
        cross = CrossAttentionWriter(writer, beams, self.formats.cross)
        layers = self._stack(writer, self.formats.linear, attention.cached, cross)
        self._head(writer, layers(stack, _flat(writer, ids), _flat(writer, positions)))
        writer.save(path)

    def _head(self, writer: GraphWriter, hidden: Value) -> None:
        if self.net.head.projection is not None:
            hidden = self._linear(writer, self.formats.linear)(hidden, self.net.head.projection)
        head = HeadWriter(writer, self._linear(writer, self.formats.head), self._table(writer))
        head(hidden, self.net.head, self.net.vocab_size)

    def _writer(self, name: str) -> GraphWriter:
        linear = self.formats.linear
        compute = FLOAT_TYPES.get(linear, np.float32)
        return GraphWriter(f"{self.net.family}_{name}", self.weights, compute, linear in FINER)

    def _stack(
        self, writer: GraphWriter, weight_format: WeightFormat, attend: SelfAttend, cross: CrossAttend | None = None
    ) -> StackWriter:
        wide = self.net.wide_residual
        return StackWriter(
            writer=writer,
            linear=self._linear(writer, weight_format),
            down=self._linear(writer, "fp32" if wide and writer.compute is np.float16 else weight_format),
            table=self._table(writer),
            attend=attend,
            cross=cross,
            residual=np.float32 if wide else writer.compute,
        )

    def _linear(self, writer: GraphWriter, weight_format: WeightFormat) -> LinearWriter:
        return LinearWriter(writer, weight_format, self.levels, self.formats.block, self.formats.kept)

    def _table(self, writer: GraphWriter) -> LinearWriter:
        tied = self.net.head.embedding is not None
        return self._linear(writer, self.formats.head if tied else self.formats.embedding)


def _flat(writer: GraphWriter, value: Value) -> Value:
    return writer.node("Reshape", [value, writer.const([-1], np.int64)])


def _without_pads(writer: GraphWriter, ids: Value, pad_id: int) -> Value:
    """Return, for each token of ids [requests, source], the number of tokens before it that are no pads."""
    is_pad = writer.node("Equal", [ids, writer.const(pad_id, np.int64)])
    others = writer.cast(writer.node("Not", [is_pad]), np.int64)
    return writer.node("CumSum", [others, writer.const(1, np.int64)], exclusive=1)


def _lead(writer: GraphWriter, ids: Value) -> Value:
    """Return the shape [rows, sequence, -1] for ids [rows, sequence]."""
    return writer.node("Concat", [writer.node("Shape", [ids]), writer.const([-1], np.int64)], axis=0)


def log_softmax_graph(path: Path, vocab_size: int) -> None:
    """Write the graph from scores [rows, vocabulary] to log_probs [rows, vocabulary]."""
    writer = GraphWriter("log_softmax", None)
    scores = writer.input("scores", np.float32, ["rows", vocab_size])
    op = writer.defined("LogSoftmax", operators.function)
    writer.output("log_probs", np.float32, ["rows", vocab_size], writer.node(op, [scores], operators.DOMAIN))
    writer.save(path)


def top_k_graph(path: Path) -> None:
    """Write the graph from scores [rows, vocabulary] and k [1] to values and ids [rows, k], the best first.

    Among equal scores, the lowest id is first.
    """
    writer = GraphWriter("top_k", None)
    scores = writer.input("scores", np.float32, ["rows", "vocab"])
    k = writer.input("k", np.int64, [1])
    writer.nodes("TopK", [scores, k], ["values", "ids"], axis=-1, largest=1, sorted=1)
    writer.output("values", np.float32, ["rows", "k"], "values")
    writer.output("ids", np.int64, ["rows", "k"], "ids")
    writer.save(path)


def choose_graph(path: Path, vocab_size: int) -> None:
    """Write the graph for a GPU from scores [all, vocabulary] to the best values and ids of some rows [rows, k].

    The inputs:
    rows [rows]: the rows of `scores` to choose from, of which a row may occur several times.
    log_probs [rows, 1]: whether the row's log-softmax replaces its scores.
    changed [1, n], amounts [3, n]: indices of the flattened rows, and for the score at each index a penalty (by which
        a negative score is multiplied and any other is divided), an amount to subtract, and then an amount to add. If
        an index occurs twice, its amounts are the same.
    banned [1, m], limits [1, m]: indices of the flattened rows, and the most that the score there may then be.
    ranks [k]: its length says how many scores of each row are returned. Its values are not read, because the operator
        TopK on a GPU reads k on the host, where a GPU's Shape writes it.

    The best score is first. On the CPU, the lowest id is first among equal scores; on a GPU, their order is open.
    """
    writer = GraphWriter("choose", None)
    scores = writer.input("scores", np.float32, ["all", vocab_size])
    log_probs = writer.input("log_probs", np.bool_, ["rows", 1])
    changed = writer.input("changed", np.int64, [1, "changed"])
    amounts = writer.input("amounts", np.float32, [3, "changed"])
    banned = writer.input("banned", np.int64, [1, "banned"])
    limits = writer.input("limits", np.float32, [1, "banned"])
    ranks = writer.input("ranks", np.int8, ["k"])
    picked = writer.node("Gather", [scores, writer.input("rows", np.int64, ["rows"])])
    picked = writer.node("Where", [log_probs, writer.node("LogSoftmax", [picked]), picked])
    flat = writer.node("Reshape", [picked, writer.const([1, -1], np.int64)])
    flat = writer.node("ScatterElements", [flat, changed, _changed(writer, flat, changed, amounts)], axis=1)
    flat = writer.node("ScatterElements", [flat, banned, limits], axis=1, reduction="min")
    edited = writer.node("Reshape", [flat, writer.const([-1, vocab_size], np.int64)])
    writer.nodes("TopK", [edited, writer.node("Shape", [ranks])], ["values", "ids"], axis=-1, largest=1, sorted=1)
    writer.output("values", np.float32, ["rows", "k"], "values")
    writer.output("ids", np.int64, ["rows", "k"], "ids")
    writer.save(path)


def _changed(writer: GraphWriter, flat: Value, changed: Value, amounts: Value) -> Value:
    """Return the new scores [1, n] at the indices `changed` of `flat` scores."""
    old = writer.node("GatherElements", [flat, changed], axis=1)
    names = [writer.unique(name) for name in ("penalties", "subtracted", "added")]
    penalties, subtracted, added = writer.nodes("Split", [amounts], names, axis=0, num_outputs=3)
    times, by = (writer.node(op, [old, penalties]) for op in ("Mul", "Div"))
    penalized = writer.node("Where", [writer.node("Less", [old, writer.const(0, np.float32)]), times, by])
    return writer.node("Add", [writer.node("Sub", [penalized, subtracted]), added])


@dataclass(frozen=True)
class StackWriter:
    """Writes a stack with the attention that its graph needs.

    `table` reads embeddings, `down` writes the last linear of a feed forward, and `residual` is the type of the
    residual stream. In a float16 graph, `down` and `residual` may be float32. `pick` chooses the rows that the last
    layer's self attention has results for.
    """

    writer: GraphWriter
    linear: LinearWriter
    down: LinearWriter
    table: LinearWriter
    attend: SelfAttend
    cross: CrossAttend | None
    residual: FloatType
    pick: Callable[[Value], Value] | None = None

    def __call__(self, stack: Stack, ids: Value, positions: Value | None) -> Value:
        """Write `stack`, and return the last hidden state [tokens, hidden] of `ids` [tokens] at `positions`."""
        norms = _closing_norms(stack)
        normed, residual = self._enter(stack, ids, positions)

        def close(x: Value, block: Linear, linear: LinearWriter) -> tuple[Value, Value]:
            out, total = self._closed(x, block, linear, residual, *next(norms))
            return self._narrow(out), total if stack.pre_norm else out

        for index, layer in enumerate(stack.layers):
            qkv = self.linear(normed, layer.attention.qkv)
            attended = self.attend(qkv, index, layer.attention)
            if self.pick is not None and index == len(stack.layers) - 1:
                residual = self.pick(residual)
            if stack.parallel:
                normed = self._narrow(norm(self.writer, residual, layer.norms[1], self.residual))
                residual = self._added(attended, layer.attention.out, self.linear, residual)
            else:
                normed, residual = close(attended, layer.attention.out, self.linear)
            if layer.cross is not None and self.cross is not None:
                attended = self.cross(self.linear(normed, layer.cross.query), index, layer.cross)
                normed, residual = close(attended, layer.cross.out, self.linear)
            block = layer.feed_forward
            activated = self.linear.activated(normed, block.up, block.activation, block.gated)
            normed, residual = close(activated, block.down, self.down)
        return normed

    def _enter(self, stack: Stack, ids: Value, positions: Value | None) -> tuple[Value, Value]:
        """Return the input of the first layer, and the residual."""
        writer = self.writer
        x = self.table.rows(ids, stack.embedding)
        if stack.embedding.projection is not None:
            x = self.linear(x, stack.embedding.projection)
        x = self._cast(x, writer.compute, self.residual)
        if stack.positions is not None and positions is not None:
            if stack.pad_id is not None:
                is_pad = writer.node("Equal", [ids, writer.const(stack.pad_id, np.int64)])
                last = writer.const(stack.positions.shape[0] - 1, np.int64)
                positions = writer.node("Where", [is_pad, last, positions])
            places = writer.node("Gather", [writer.vector(stack.positions, self.residual), positions])
            x = writer.node("Add", [x, places])
        if stack.embedding_norm is not None:
            x = norm(writer, x, stack.embedding_norm, self.residual)
        if not stack.pre_norm:
            return self._narrow(x), x
        return self._narrow(norm(writer, x, stack.layers[0].norms[0], self.residual)), x

    def _closed(
        self, x: Value, block: Linear, linear: LinearWriter, residual: Value, own: Norm | None, closing: Norm
    ) -> tuple[Value, Value]:
        """Add `block` of x, after its `own` norm if any, to the residual; return (`closing` of the sum, the sum)."""
        if own is not None:
            product = norm(self.writer, self._product(x, block, linear), own, self.residual)
            return skip_norm(self.writer, product, residual, closing, self.residual)
        if self._is_wide(linear) and self.writer.compute is np.float32:  # added by the product's own operator
            total = self._added(x, block, linear, residual)
            return norm(self.writer, total, closing, self.residual), total
        return skip_norm(self.writer, self._product(x, block, linear), residual, closing, self.residual)

    def _added(self, x: Value, block: Linear, linear: LinearWriter, residual: Value) -> Value:
        """Return `block` of x, plus the residual."""
        if self._is_wide(linear):
            return linear.added(self._cast(x, self.writer.compute, linear.dtype), block, residual)
        return self.writer.node("Add", [self._product(x, block, linear), residual])

    def _is_wide(self, linear: LinearWriter) -> bool:
        return linear.dtype is np.float32 and self.residual is np.float32

    def _product(self, x: Value, block: Linear, linear: LinearWriter) -> Value:
        """Return `block` of x, in the type of the residual."""
        y = linear(self._cast(x, self.writer.compute, linear.dtype), block)
        return self._cast(y, linear.dtype, self.residual)

    def _narrow(self, x: Value) -> Value:
        return self._cast(x, self.residual, self.writer.compute)

    def _cast(self, x: Value, dtype: FloatType, wanted: FloatType) -> Value:
        return x if dtype is wanted else self.writer.cast(x, wanted)


def _closing_norms(stack: Stack) -> Iterator[tuple[Norm | None, Norm]]:
    """Return, for each residual addition in order, the norm of the addend or None, and the norm after the addition."""
    own: list[Norm | None] = [block for layer in stack.layers for block in layer.post_norms]
    norms = [block for layer in stack.layers for block in layer.norms[: 1 if stack.parallel else None]]
    if stack.pre_norm:
        if stack.final_norm is None:
            raise ValueError("a stack with norms before its parts ends with a norm")
        norms = [*norms[1:], stack.final_norm]
    return zip(own or [None] * len(norms), norms, strict=True)
