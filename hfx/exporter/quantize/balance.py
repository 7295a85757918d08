"""Balances outlier channels of hidden states, so that int8 activations stay precise in the other channels.

A trained net may put most of a hidden state's energy into one channel: in the T5 that the tests read, one of 128 is 35
times as large as the others. As a row has one scale, few of its 256 steps are left for the other channels. Before a
layer's matrices, a part of each channel's size is therefore moved from the norm into the matrices (SmoothQuant, Xiao et
al. 2023): no product changes and no node is added. Before the head, whose matrix may be the embedding too, the loudest
channels are multiplied separately. The activations of random tokens are measured, as the outliers are in the same
channels for any text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hfx.exporter.graph.blocks import FloatArray, Layer, Linear, Net, Norm, Stack
from hfx.exporter.graph.linear import ACTIVATION_LEVELS
from hfx.exporter.graph.reference import run_net
from hfx.exporter.quantize.generator import ALL_LEVELS, Formats

ROWS, TOKENS, SEED = 8, 32, 0
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # the shares of a channel's size to try, as exponents; the best one is used
MOST = 64.0  # the largest factor, so that a silent channel is not multiplied without limit
LOUD = 2.5  # a channel is loud above this multiple of the median of all channels' peaks
MOST_LOUD = 8
Factors = dict[str, FloatArray]  # name of a norm -> the divisors of its channels


def balanced(net: Net, formats: Formats, levels: int, known: Balances) -> Net:
    """Return `net` with balanced channels for int8 linears with weights up to `levels`.

    The net computes the same function apart from rounding. Only norms before the parts of a layer are balanced, as
    nothing but matrices reads their output. What is measured is added to `known`, which belongs to one checkpoint.
    """
    if not net.decoder.pre_norm or formats.int8 <= {"embedding"}:
        return net
    key = (formats.int8 & {"linear", "encoder"}, levels, net.max_length)
    observer = known[key] = known.get(key) or _observed(net, formats, levels)
    encoder, decoder = net.encoder and _stack(net.encoder, observer.factors), _stack(net.decoder, observer.factors)
    if net.encoder is not None and net.encoder.final_norm is not None:
        decoder = _memories(decoder, observer.factors.get(net.encoder.final_norm.name))
    read_by_head = decoder.final_norm if net.head.projection is None else None
    loud: tuple[int, ...] = ()
    if read_by_head is not None:
        peak = observer.peaks[read_by_head.name]
        loud = tuple(sorted(int(i) for i in np.argsort(-peak)[:MOST_LOUD] if peak[i] > LOUD * np.median(peak)))
    return replace(net, encoder=encoder, decoder=decoder, head=replace(net.head, loud=loud))


def _observed(net: Net, formats: Formats, levels: int) -> _Observer:
    observer = _Observer(dict(_readers(net, formats)), levels, {}, {})
    tokens = np.random.default_rng(SEED).integers(0, net.vocab_size, (2, ROWS, min(TOKENS, net.max_length)))
    source = None if net.encoder is None else tokens[1] % net.encoder.embedding.table.shape[0]
    run_net(net, tokens[0], source, observer)
    observer.readers.clear()  # they may hold the checkpoint's tensors
    return observer


@dataclass(frozen=True)
class _Observer:
    """Records the peaks of each norm's output, and the best factors for the int8 linears that read the output."""

    readers: dict[str, tuple[Linear, ...]]
    levels: int
    factors: Factors
    peaks: dict[str, FloatArray]

    def __call__(self, norm: Norm, output: FloatArray) -> None:
        rows = output.reshape(-1, output.shape[-1])
        self.peaks[norm.name] = np.abs(rows).max(axis=0)
        if norm.name in self.readers:
            self.factors[norm.name] = best_factors(rows, self.readers[norm.name], self.levels)


# By the parts in int8, the levels of int8 weights, and the net's length.
Balances = dict[tuple[frozenset[str], int, int], _Observer]


def best_factors(rows: FloatArray, linears: tuple[Linear, ...], levels: int) -> FloatArray:
    """Return the divisors of the channels of `rows` [n, channels] with the least error of int8 products with `linears`.

    The expected error of a product assumes uniform rounding: a row's step is its peak / 127, and the step of an output
    is its largest weight / 127, or about 63 if `levels` bound the sum of four.
    """
    peak = np.abs(rows).max(axis=0)
    middle = float(np.median(peak))
    ratio = np.clip(peak / middle, 1 / MOST, MOST) if middle > 0 else np.ones_like(peak)
    candidates = [(ratio**share).astype(np.float32) for share in SHARES]
    energies, steps = np.zeros(len(candidates)), np.zeros(len(candidates))
    for linear in linears:
        for chunk in linear.weight.chunks():
            squares = chunk**2
            for index, factors in enumerate(candidates):
                scaled = squares * factors**2
                energies[index] += scaled.sum()
                steps[index] += scaled.max(axis=1).sum()
    evened = [(rows / factors) ** 2 for factors in candidates]
    row_steps = np.array([each.max(axis=1).mean() for each in evened]) / ACTIVATION_LEVELS**2
    row_energies = np.array([each.sum(axis=1).mean() for each in evened])
    largest = levels if levels == ALL_LEVELS else levels / 2
    errors = row_steps * energies + row_energies * steps / largest**2
    best: FloatArray = candidates[int(errors.argmin())]
    return best


def _readers(net: Net, formats: Formats) -> Iterator[tuple[str, tuple[Linear, ...]]]:
    """Yield each norm whose output is read by int8 linears of layers only, with these linears."""
    if net.encoder is not None and net.encoder.pre_norm and "encoder" in formats.int8:
        yield from (pair for layer in net.encoder.layers for pair in _layer_readers(layer))
        if net.encoder.final_norm is not None:
            memories = (layer.cross.memory for layer in net.decoder.layers if layer.cross is not None)
            yield net.encoder.final_norm.name, tuple(memories)
    if "linear" in formats.int8:
        yield from (pair for layer in net.decoder.layers for pair in _layer_readers(layer))


def _layer_readers(layer: Layer) -> Iterator[tuple[str, tuple[Linear, ...]]]:
    crossed = [] if layer.cross is None else [layer.cross.query]
    linears = [layer.attention.qkv, *crossed, layer.feed_forward.up]
    return ((norm.name, (linear,)) for norm, linear in zip(layer.norms, linears, strict=True))


def _stack(stack: Stack, factors: Factors) -> Stack:
    layers = tuple(_layer(layer, factors) for layer in stack.layers)
    return replace(stack, layers=layers, final_norm=stack.final_norm and _divided(stack.final_norm, factors))


def _layer(layer: Layer, factors: Factors) -> Layer:
    attention, cross, feed_forward = layer.attention, layer.cross, layer.feed_forward
    found = [factors.get(norm.name) for norm in layer.norms]
    return replace(
        layer,
        attention=replace(attention, qkv=_multiplied(attention.qkv, found[0])),
        cross=cross and replace(cross, query=_multiplied(cross.query, found[1])),
        feed_forward=replace(feed_forward, up=_multiplied(feed_forward.up, found[-1])),
        norms=tuple(_divided(norm, factors) for norm in layer.norms),
    )


def _memories(stack: Stack, factors: FloatArray | None) -> Stack:
    """Return the decoder with `factors` applied to the matrices that read the encoder's last norm."""
    return replace(
        stack,
        layers=tuple(
            replace(layer, cross=layer.cross and replace(layer.cross, memory=_multiplied(layer.cross.memory, factors)))
            for layer in stack.layers
        ),
    )


def _multiplied(linear: Linear, factors: FloatArray | None) -> Linear:
    return linear if factors is None else replace(linear, weight=linear.weight.with_columns_times(factors))


def _divided(norm: Norm, factors: Factors) -> Norm:
    if norm.name not in factors:
        return norm
    shrink = 1 / factors[norm.name]
    return replace(norm, weight=norm.weight.times(shrink), bias=norm.bias and norm.bias.times(shrink))
