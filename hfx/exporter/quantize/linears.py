"""Rank the linears of a generator by the error that each one alone adds to its layer in a quantized format.

Each layer runs in numpy on its float32 input, once in float32 and once for each of its linears in the quantized format.
The input are hidden states of random tokens, as in balance.py. A decoder's linear that reads the encoder's output
belongs to the decoder's layer, and a projection of embeddings or of the last hidden state is ranked by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from hfx.exporter.graph.blocks import FloatArray, Layer, Linear, Net, Stack
from hfx.exporter.graph.linear import ACTIVATION_LEVELS
from hfx.exporter.graph.panels import Int4, Int8, integers_of
from hfx.exporter.graph.reference import Ids, StackRun, later_mask
from hfx.exporter.progress import counted
from hfx.exporter.quantize.balance import ROWS, SEED, TOKENS
from hfx.exporter.quantize.generator import Formats, WeightFormat


def rank_linears(net: Net, formats: Formats, levels: int) -> dict[str, float]:
    """Return linear -> error, the largest first, for the linears that `formats` quantizes.

    The error is the root mean square of what changes in the output of the linear's layer, relative to that of the
    output. `levels` are those of int8 weights.
    """
    tokens = np.random.default_rng(SEED).integers(0, net.vocab_size, (2, ROWS, min(TOKENS, net.max_length)))
    errors: dict[str, float] = {}
    memory = None
    if net.encoder is not None:
        source = tokens[1] % net.encoder.embedding.table.shape[0]
        memory = _Run(np.float32(0), None, formats, levels).rank(net.encoder, formats.encoder, source, errors)
    run = _Run(later_mask(tokens.shape[2]), memory, formats, levels)
    hidden = run.rank(net.decoder, formats.linear, tokens[0], errors)
    if net.head.projection is not None:
        run.compare(net.head.projection, formats.linear, partial(run.linear, hidden, net.head.projection), errors)
    return dict(sorted(errors.items(), key=lambda each: -each[1]))


class _Run(StackRun):
    """Runs a stack in float32, or with the linear named `chosen` in `integers`."""

    def __init__(self, mask: FloatArray | np.float32, memory: FloatArray | None, formats: Formats, levels: int) -> None:
        super().__init__(lambda norm, output: None, mask, memory)
        self.formats, self.levels = formats, levels
        self.chosen = ""
        self.integers: Int8 | Int4 | None = None
        self.products: dict[str, tuple[FloatArray, FloatArray]] = {}  # the layer's: name -> input and output in float32

    def rank(self, stack: Stack, kind: WeightFormat, ids: Ids, errors: dict[str, float]) -> FloatArray:
        """Add the errors of the stack's linears in the format `kind` to `errors`, and return the last hidden state."""
        x, bias = self.enter(stack, ids), self.bias(stack, ids.shape[1])
        if stack.embedding.projection is not None:
            self.compare(stack.embedding.projection, kind, partial(self.enter, stack, ids), errors, x)
        for layer in counted(stack.layers, "layers with a linear in integers alone"):
            run = partial(self.layer, stack, layer, bias, x)
            self.products.clear()
            y = run()
            for linear in _linears(layer):
                # The encoder's graph has the linears that read its output.
                is_memory = layer.cross is not None and linear is layer.cross.memory
                self.compare(linear, self.formats.encoder if is_memory else kind, run, errors, y)
            x = y
        return x if stack.final_norm is None else self._norm(x, stack.final_norm)

    def compare(
        self,
        linear: Linear,
        kind: WeightFormat,
        run: Callable[[], FloatArray],
        errors: dict[str, float],
        exact: FloatArray | None = None,
    ) -> None:
        """Add to `errors` what `linear` in the format `kind` changes in the result of `run`, which is `exact`."""
        self.integers = integers_of(kind, self.levels, self.formats.block)
        if self.integers is None:
            return
        exact = run() if exact is None else exact
        self.chosen = linear.name
        difference, whole = (float(np.square(each, dtype=np.float64).sum()) for each in (run() - exact, exact))
        error = float(np.sqrt(difference / max(whole, float(np.finfo(np.float64).tiny))))
        errors[linear.name] = error if np.isfinite(error) else float("inf")
        self.chosen = ""

    def linear(self, x: FloatArray, block: Linear) -> FloatArray:
        """Return `block` of x, quantized if it is chosen."""
        integers = self.integers
        if block.name != self.chosen or integers is None:
            known = self.products.get(block.name)
            if known is None or not np.array_equal(known[0], x):
                known = x, super().linear(x, block)
                self.products.setdefault(block.name, known)
            return known[1]
        peaks: FloatArray = np.abs(x).max(-1, keepdims=True)
        steps = np.where(peaks > 0, peaks / np.float32(ACTIVATION_LEVELS), np.float32(1))
        weight = block.weight
        rounded = replace(weight, take=lambda start, stop: integers.rounded(weight.take(start, stop)))
        return super().linear(np.rint(x / steps) * steps, replace(block, weight=rounded))


def _linears(layer: Layer) -> Iterator[Linear]:
    yield from (layer.attention.qkv, layer.attention.out, layer.feed_forward.up, layer.feed_forward.down)
    if layer.cross is not None:
        yield from (layer.cross.query, layer.cross.memory, layer.cross.out)
