"""The blocks that a generator is made of, as values: the output of a family, and the only input of an emitter.

A family (exporter/families) maps a checkpoint to a `Net` of blocks; an emitter turns a `Net` into graphs. This module
knows neither ONNX nor the names in a checkpoint, so that another emitter can use the same families.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES = 16 << 20  # a large tensor is read in pieces of this size, to avoid a second copy of it

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu", "relu", "tanh"]
Kind = Literal["decoder", "encoder-decoder"]
FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Parameter:
    """A float32 tensor that is read on demand: `take(start, stop)` returns rows of its first axis."""

    name: str
    shape: tuple[int, ...]
    take: Callable[[int, int], FloatArray]

    def read(self) -> FloatArray:
        """Read the whole tensor into memory."""
        return self.take(0, self.shape[0] if self.shape else 1)

    def chunks(self) -> Iterator[FloatArray]:
        """Yield the tensor in order, some rows at a time."""
        rows = max(1, CHUNK_BYTES // max(1, 4 * int(np.prod(self.shape[1:]))))
        for start in range(0, self.shape[0], rows):
            yield self.take(start, min(start + rows, self.shape[0]))

    def rows(self, start: int, stop: int) -> Parameter:
        """Return rows `start` to `stop` as a tensor of their own."""
        shape = (stop - start, *self.shape[1:])
        return Parameter(f"{self.name}[{start}:{stop}]", shape, lambda a, b: self.take(start + a, start + b))

    def scaled(self, factor: float) -> Parameter:
        """Return the tensor with each element multiplied by `factor`."""
        scale = np.float32(factor)
        return Parameter(f"{self.name}*{factor:.9g}", self.shape, lambda a, b: self.take(a, b) * scale)

    def plus(self, number: float) -> Parameter:
        """Return the tensor with `number` added to each element."""
        added = np.float32(number)
        return Parameter(f"{self.name}+{number:.9g}", self.shape, lambda a, b: self.take(a, b) + added)

    def with_columns_times(self, factors: FloatArray) -> Parameter:
        """Return the matrix with its columns multiplied by `factors`, under the same name, as it replaces this one."""
        return Parameter(self.name, self.shape, lambda a, b: self.take(a, b) * factors)

    def columns(self, chosen: tuple[int, ...]) -> Parameter:
        """Return the `chosen` columns of a matrix."""
        shape = (self.shape[0], len(chosen))
        return Parameter(f"{self.name}{list(chosen)}", shape, lambda a, b: self.take(a, b)[:, chosen])

    def reordered(self, order: NDArray[np.int64]) -> Parameter:
        """Return the tensor with its rows in another order."""

        def take(start: int, stop: int) -> FloatArray:
            rows = order[start:stop]
            first, last = (int(rows.min()), int(rows.max()) + 1) if len(rows) else (0, 0)
            taken: FloatArray = self.take(first, last)[rows - first]
            return taken

        return Parameter(f"{self.name}[reordered]", self.shape, take)

    def times(self, factors: FloatArray) -> Parameter:
        """Return the vector times `factors`, under the same name, as it replaces this one."""
        return Parameter(self.name, self.shape, lambda a, b: self.take(a, b) * factors[a:b])


def constant(name: str, value: FloatArray) -> Parameter:
    """Return a tensor that is computed, not read from a checkpoint."""
    return Parameter(name, value.shape, lambda start, stop: value[start:stop])


def joined(name: str, parts: list[Parameter]) -> Parameter:
    """Return the tensors concatenated along the first axis."""
    ends = np.cumsum([part.shape[0] for part in parts]).tolist()

    def take(start: int, stop: int) -> FloatArray:
        taken = []
        for part, end in zip(parts, ends, strict=True):
            begin = end - part.shape[0]
            first, last = max(start, begin), min(stop, end)
            if first < last:
                taken.append(part.take(first - begin, last - begin))
        return np.concatenate(taken) if taken else parts[0].take(0, 0)

    return Parameter(name, (ends[-1], *parts[0].shape[1:]), take)


@dataclass(frozen=True)
class Linear:
    """x @ weight.T + bias, with `weight` [outputs, inputs] and `bias` [outputs]."""

    name: str
    weight: Parameter
    bias: Parameter | None = None


def side_by_side(name: str, linears: list[Linear]) -> Linear:
    """Return linears with the same input as one linear, their outputs side by side."""
    biases = [linear.bias for linear in linears if linear.bias is not None]
    weight = joined(name + ".weight", [linear.weight for linear in linears])
    return Linear(name, weight, joined(name + ".bias", biases) if biases else None)


@dataclass(frozen=True)
class Norm:
    """A layer norm, or a root-mean-square norm (without a bias) if `kind` is "rms"."""

    name: str
    kind: Literal["layer", "rms"]
    weight: Parameter
    bias: Parameter | None
    epsilon: float


@dataclass(frozen=True)
class Embedding:
    """Rows of `table` [vocabulary, width] by token id, times `scale`; `projection` maps a row to [hidden]."""

    name: str
    table: Parameter
    scale: float = 1.0
    projection: Linear | None = None


@dataclass(frozen=True)
class DistanceBias:
    """A bias of attention scores by distance, with `table` [distances, heads].

    The row of a key and a query is `reach` + key - query in an encoder, and query - key in a decoder. Distances beyond
    `reach` have the value of `reach`.
    """

    table: Parameter
    reach: int


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: channels i and i + head_dim / 2 of each head of Q and K are turned by an angle.

    `cos` and `sin` [positions, head_dim / 2] are the cosines and sines of the angles.
    """

    cos: Parameter
    sin: Parameter


@dataclass(frozen=True)
class Attention:
    """Self attention. In the output of `qkv`, all heads of Q precede the heads of K and V. `scale` multiplies scores.

    `heads` / `kv_heads` neighbouring heads of Q share a head of K and V. `head_norms` normalize each head of Q and of
    K, before `rotary` turns them. With a `window`, a token attends to `window` tokens: itself and the tokens before it.
    """

    qkv: Linear
    out: Linear
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rotary: Rotary | None = None
    head_norms: tuple[Norm, Norm] | None = None
    window: int | None = None

    @property
    def widths(self) -> tuple[int, int, int]:
        """The widths of Q, K and V in the output of `qkv`."""
        kv = self.kv_heads * self.head_dim
        return self.heads * self.head_dim, kv, kv


@dataclass(frozen=True)
class CrossAttention:
    """Attention to the encoder's output, from which `memory` computes K, then V."""

    query: Linear
    memory: Linear
    out: Linear
    heads: int
    head_dim: int
    scale: float


@dataclass(frozen=True)
class FeedForward:
    """down(activation(up(x))); if `gated`, `up` computes gate and value, and `down` reads activation(gate) * value."""

    up: Linear
    down: Linear
    activation: Activation
    gated: bool = False


@dataclass(frozen=True)
class Layer:
    """Self attention, optional cross attention, and feed forward, with a norm for each of them.

    `post_norms` normalize the outputs of self attention and feed forward before they are added to the residual.
    """

    attention: Attention
    cross: CrossAttention | None
    feed_forward: FeedForward
    norms: tuple[Norm, ...]
    post_norms: tuple[Norm, ...] = ()


@dataclass(frozen=True)
class Stack:
    """An encoder or a decoder.

    `positions` [positions, hidden] are added to the embedding. Tokens `pad_id` have the last row of `positions` at any
    place, and an encoder counts places without them. With `pre_norm` a layer's norms come before its parts, and
    `final_norm` after the last layer; otherwise each norm comes after its part and the residual addition. With
    `parallel`, both parts of a layer read the layer's input.
    """

    embedding: Embedding
    layers: tuple[Layer, ...]
    positions: Parameter | None = None
    bias: DistanceBias | None = None
    embedding_norm: Norm | None = None
    pre_norm: bool = True
    final_norm: Norm | None = None
    pad_id: int | None = None
    parallel: bool = False


@dataclass(frozen=True)
class Head:
    """Maps hidden states to logits. `embedding` is the decoder's if head and embedding are one table, else None.

    `projection` maps hidden states to the rows that `linear` reads. `loud` are channels of the hidden state that are so
    large that an int8 head multiplies them separately, in float32.
    """

    linear: Linear
    embedding: Embedding | None
    loud: tuple[int, ...] = ()
    projection: Linear | None = None


@dataclass(frozen=True)
class Net:
    """A generator: the stacks, the head, and `max_length`, the limit of each stack's positions in tokens.

    Only nets without an encoder may have rotary positions, shared heads of K and V, norms of heads or windows. Raises
    ValueError for others.
    """

    family: str
    decoder: Stack
    head: Head
    max_length: int
    encoder: Stack | None = None
    wide_residual: bool = False  # in half precision the residual stream stays float32: its values outgrow float16

    @property
    def kind(self) -> Kind:
        """The kind of generator: with an encoder or without."""
        return "encoder-decoder" if self.encoder else "decoder"

    @property
    def vocab_size(self) -> int:
        """The number of tokens that have a logit."""
        return self.head.linear.weight.shape[0]

    def __post_init__(self) -> None:
        if self.encoder is None:
            return
        for attention in (layer.attention for stack in (self.encoder, self.decoder) for layer in stack.layers):
            plain = replace(attention, rotary=None, head_norms=None, window=None, kv_heads=attention.heads)
            if attention != plain:
                raise ValueError("rotary positions, shared heads, norms of heads and windows are for decoders alone")
