"""Sentence pooling: make one vector from a row's token embeddings, as the modules of sentence-transformers do.

The pooling is a torch module. The gate runs it for the checkpoint's own answers, and its trace is the end of the net's
graph (pooled_graph.py), so that the net returns one vector for a text of 512 tokens instead of 512 vectors.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from hfx.errors import CheckpointCorrupt
from hfx.exporter.checkpoint_files import find_weights
from hfx.exporter.config_file import AGAIN

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from hfx.exporter.source import Checkpoint

Mode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
SpladeMode = Literal["max", "sum"]
HIDDEN_STATE, LOGITS = "last_hidden_state", "logits"
TOKENS = "tokens"  # the name of the pooling that keeps a vector for each token (TokenLayers)
TINY = 1e-9  # sentence-transformers' floor for the weights of all tokens
NORM_FLOOR = 1e-12  # torch.nn.functional.normalize's floor
LOWEST = -1e9  # the value of tokens that max pooling leaves out
SCALE = 1024  # divides the positions by which tokens are weighted: their sum fits float16 for up to 8,192 tokens


@dataclass(frozen=True)
class Layer:
    """A module after the pooling.

    `kind` is Dense or LayerNorm (their weights are in the checkpoint's folder `path`), Normalize, Truncate, which keeps
    the first `outputs` values, or Active, which sets all but the largest `outputs` values to 0. The `activation` of
    Dense is a class of torch.nn.
    """

    kind: Literal["Dense", "LayerNorm", "Normalize", "Truncate", "Active"]
    path: str = ""
    inputs: int = 0
    outputs: int = 0
    bias: bool = True
    activation: str = "Tanh"
    residual: bool = False


@dataclass(frozen=True)
class Pooling:
    """How token embeddings become one vector: the results of all `modes` are concatenated, and go through `layers`.

    Unless `pools_prompt` is true, tokens whose mask is 2 instead of 1 are left out.
    """

    modes: tuple[Mode, ...] = ("mean",)
    layers: tuple[Layer, ...] = ()
    pools_prompt: bool = True

    reads: ClassVar[str] = HIDDEN_STATE  # the output of the model that is pooled

    @property
    def names(self) -> list[str]:
        """The steps of the pooling, in words."""
        return [*self.modes]

    @property
    def by_role(self) -> bool:
        """Whether the mask says which tokens of a query or document count (python_backends/roles.py)."""
        return False

    @property
    def has_masks(self) -> bool:
        """Whether masks have other values than 0 and 1."""
        return self.by_role or not self.pools_prompt

    def width(self, hidden: int) -> int:
        """Return the length of the vector for `hidden` values a token. Raises CheckpointCorrupt if layers don't fit."""
        return self._behind_layers(hidden * len(self.modes))

    def _behind_layers(self, width: int) -> int:
        for layer in self.layers:
            if layer.kind == "Active":
                continue
            if layer.inputs not in (0, width):
                raise CheckpointCorrupt(
                    f"{layer.path}/config.json is for vectors of {layer.inputs} values, and gets {width}.", AGAIN
                )
            width = min(layer.outputs, width) if layer.kind == "Truncate" else layer.outputs or width
        return width

    def pooled(self, layers: torch.nn.Module, hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the output of `layers` for the model's output `[rows, tokens, ...]` and token `weights` of 0 or 1."""
        import torch

        vectors = torch.cat([_pooled(mode, hidden, weights, self.pools_prompt) for mode in self.modes], -1)
        return layers(vectors)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class SpladePooling(Pooling):
    """The max or sum over the tokens of log(1 + relu(logit)) of a masked language model.

    The logarithm is taken `logs` times. `table` is the path of a table with a number for each token
    (SparseStaticEmbedding; empty if there is none). A query's vector has the numbers of its tokens, whose mask is 2.
    """

    modes: tuple[Mode, ...] = ()
    mode: SpladeMode = "max"
    logs: int = 1
    table: str = ""

    reads: ClassVar[str] = LOGITS

    @property
    def names(self) -> list[str]:
        return [f"splade-{self.mode}"]

    @property
    def by_role(self) -> bool:
        return bool(self.table)

    def width(self, hidden: int) -> int:
        return self._behind_layers(hidden)

    def pooled(self, layers: torch.nn.Module, hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return layers(_splade(self.mode, self.logs, hidden, weights))  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class TokenLayers(Pooling):
    """Layers that are applied to each token's vector; nothing is pooled.

    With `of_roles`, the mask says which tokens of queries and documents have a vector.
    """

    modes: tuple[Mode, ...] = ()
    of_roles: bool = False

    @property
    def names(self) -> list[str]:
        return [TOKENS]

    @property
    def by_role(self) -> bool:
        return self.of_roles

    def width(self, hidden: int) -> int:
        return self._behind_layers(hidden)

    def pooled(self, layers: torch.nn.Module, hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return layers(hidden) * weights.unsqueeze(-1)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class AnswerLogits(Pooling):
    """Numbers made of a language model's logits of `answers`, which are tokens or their ids, at the last position.

    The logits are at most `cap` if it is given (Gemma 2: cap * tanh(logit / cap)).
    """

    modes: tuple[Mode, ...] = ("lasttoken",)
    answers: tuple[int | str, ...]
    cap: float | None = None

    @property
    def names(self) -> list[str]:
        return [*super().names, f"logits {'-'.join(map(str, self.answers))}"]

    def width(self, hidden: int) -> int:
        return 1  # of a re-ranker

    def pooled(self, layers: torch.nn.Module, hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        logits = super().pooled(layers, hidden, weights)
        return logits if self.cap is None else self.cap * (logits / self.cap).tanh()


def make_pooler(
    pooling: Pooling, checkpoint: Checkpoint | None = None, head: torch.Tensor | None = None
) -> torch.nn.Module:
    """Return `pooling` as a torch module of hidden states `[rows, tokens, hidden]` and a mask `[rows, tokens]`.

    Rows are padded on the right. The module's `reads` is the name of the model's output that it pools.
    `checkpoint` has the weights of the layers, if they have any. A last layer multiplies by the rows of `head`.
    Raises CheckpointCorrupt if weights don't fit.
    """
    import torch

    layers = [_layer(each, checkpoint) for each in pooling.layers]
    if head is not None:
        layers.append(torch.nn.Linear(head.shape[1], len(head), bias=False))
        layers[-1].weight = torch.nn.Parameter(head)
    table: NDArray[np.float32] | None = None
    if isinstance(pooling, SpladePooling) and pooling.table and checkpoint is not None:
        table = _table(pooling.table, checkpoint)

    class Pooler(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.has_masks = pooling.has_masks
            self.reads = pooling.reads
            self.layers = torch.nn.Sequential(*layers)
            self.table = table

        def look_up(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | float:
            """Return the vectors of queries, from the table; 0 for documents, and without a table."""
            if table is None:
                return 0.0
            place = torch.where(mask == 2, ids, len(table))
            made = torch.zeros(len(ids), len(table) + 1).scatter_(1, place, 1.0)[:, :-1]
            return made * torch.from_numpy(table)

        def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            weights = (mask.abs() if pooling.by_role else mask).eq(1).to(hidden.dtype)
            return pooling.pooled(self.layers, hidden, weights)

    return Pooler().eval()


def _pooled(mode: Mode, hidden: torch.Tensor, weights: torch.Tensor, starts: bool) -> torch.Tensor:
    """Pool the tokens whose weight is 1, not 0, to `[rows, hidden]`. With `starts`, the first token has weight 1."""
    import torch

    if mode == "cls":
        return hidden[:, 0] if starts else _token(hidden, weights.argmax(dim=1))
    if mode == "max":
        return hidden.masked_fill(weights.unsqueeze(-1) == 0, LOWEST).max(dim=1).values
    places = torch.arange(1, hidden.shape[1] + 1)
    if mode == "lasttoken":  # in integers: float16 has only every second integer beyond 2,048
        last = (weights.to(torch.int64) * places).argmax(dim=1)
        return _token(hidden, last) * weights.amax(dim=1, keepdim=True)
    if mode == "weightedmean":
        weights = weights * (places.to(hidden.dtype) / SCALE)  # a float Range can't become float16
    # The count is a sum of integers, which is exact.
    whole = weights if mode == "weightedmean" else weights.to(torch.int64)
    count = whole.sum(dim=1, keepdim=True).to(hidden.dtype).clamp(min=TINY)
    # Divide before the sum: in float16, the sum over thousands of tokens may overflow.
    shares = weights / (count.sqrt() if mode == "mean_sqrt_len_tokens" else count)
    # Not ONNX's sum: ONNX Runtime adds up the tokens of a lone row in another order than those of a row in a batch, so
    # the last bit of an embedding would depend on its batch.
    total: torch.Tensor = _operators().token_sum(shares, hidden)
    return total


def _splade(mode: SpladeMode, logs: int, logits: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return vectors `[rows, vocabulary]`. The logarithm is monotonic, so the maximum is taken before it."""
    if mode == "max":
        logits = logits.masked_fill(weights.unsqueeze(-1) == 0, 0).max(dim=1).values
    pooled = logits.relu()
    for _ in range(logs):
        pooled = _log1p(pooled)
    return _operators().token_sum(weights, pooled) if mode == "sum" else pooled


def _log1p(x: torch.Tensor) -> torch.Tensor:
    """Return log(1 + x) for x >= 0 (in a trace up to 2^24), by operators that give the same result at every place.

    ONNX Runtime computes Log for 16 numbers at once and for the last ones one by one. The two may differ in the last
    bit, so a vector would depend on its place in the batch. Sums, products and comparisons are exact.
    """
    import torch

    if not torch.onnx.is_in_onnx_export():
        return x.log1p()
    mantissa, exponent = x + 1, torch.zeros_like(x)
    for power in (8, 8, 4, 2, 1, 0.5):  # to 1/sqrt(2) .. sqrt(2)
        least, whole = 2.0**power, math.ceil(power)
        exponent = torch.where(mantissa >= least, exponent + whole, exponent)
        mantissa = torch.where(mantissa >= least, mantissa * 2.0**-whole, mantissa)
    share = (mantissa - 1) / (mantissa + 1)
    square, series = share * share, torch.zeros_like(x)
    for divisor in (9, 7, 5, 3, 1):  # the series of the inverse hyperbolic tangent; the next term is below 5e-10
        series = series * square + 1 / divisor
    return exponent * math.log(2) + 2 * share * series


def _token(hidden: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return hidden.gather(1, at.view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])).squeeze(1)


def token_sum(weights: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Return the sums [rows, hidden] of tokens by `weights` [rows, tokens], in the same order in any batch."""
    total: torch.Tensor = _operators().token_sum(weights, hidden)
    return total


@functools.cache
def _operators() -> SimpleNamespace:
    """Return torch functions that become hfx's operators in a trace."""
    import torch

    from hfx.exporter.graph.operators import DOMAIN

    class TokenSum(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weights: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
            return torch.matmul(weights.unsqueeze(1), hidden).squeeze(1)

        @staticmethod
        def symbolic(graph: Any, weights: Any, hidden: Any) -> Any:
            result = graph.op(f"{DOMAIN}::TokenSum", weights, hidden)
            batch, _, width = hidden.type().varyingSizes()
            result.setType(hidden.type().with_sizes([batch, width]))  # else torch warns that the type is unknown
            return result

    class UnitNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.normalize(x, dim=-1, eps=NORM_FLOOR)

        @staticmethod
        def symbolic(graph: Any, x: Any) -> Any:
            result = graph.op(f"{DOMAIN}::UnitNorm", x, epsilon_f=NORM_FLOOR)
            result.setType(x.type())
            return result

    return SimpleNamespace(token_sum=TokenSum.apply, unit_norm=UnitNorm.apply)


def _layer(layer: Layer, checkpoint: Checkpoint | None) -> torch.nn.Module:
    import torch

    class Residual(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.projection = inner, projection

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + self.projection(x)  # type: ignore[no-any-return]

    class Plain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if layer.kind == "Normalize":
                return _operators().unit_norm(x)  # type: ignore[no-any-return]
            if layer.kind == "Truncate":
                return x[..., : layer.outputs]
            values, at = x.topk(min(layer.outputs, x.shape[-1]), dim=-1)
            return torch.zeros_like(x).scatter(-1, at, values)

    if layer.kind not in ("Dense", "LayerNorm"):
        return Plain()
    assert checkpoint is not None
    read = _weights(replace(checkpoint, folder=checkpoint.folder / layer.path))
    if layer.kind == "LayerNorm":
        norm = torch.nn.LayerNorm(layer.inputs)
        _fill(norm, read, "norm.")
        return norm
    linear = torch.nn.Linear(layer.inputs, layer.outputs, layer.bias)
    _fill(linear, read, "linear.")
    activation = getattr(torch.nn, layer.activation)()
    _fill(activation, read, "activation_function.")
    inner = torch.nn.Sequential(linear, activation)
    if not layer.residual:
        return inner
    projection: torch.nn.Module = torch.nn.Identity()
    if layer.inputs != layer.outputs:
        projection = torch.nn.Linear(layer.inputs, layer.outputs, bias=False)
        _fill(projection, read, "residual.")
    return Residual()


def _weights(module: Checkpoint) -> Any:
    from hfx.exporter.tensors import CheckpointTensors

    return CheckpointTensors(replace(module, weights=find_weights(module.folder)))


def _table(path: str, checkpoint: Checkpoint) -> NDArray[np.float32]:
    """Read a number for each token. Raises CheckpointCorrupt."""
    tensors = _weights(replace(checkpoint, folder=checkpoint.folder / path))
    stored = tensors.parameter("weight", int(checkpoint.config["vocab_size"]))
    tensors.require()
    table: NDArray[np.float32] = stored.read()
    return table


def _fill(module: torch.nn.Module, tensors: Any, prefix: str) -> None:
    """Fill the parameters of `module` with the tensors named `prefix` plus the parameter's name."""
    import torch

    for name, parameter in module.named_parameters():
        stored = tensors.parameter(prefix + name, *parameter.shape)
        tensors.require()
        parameter.data = torch.from_numpy(stored.read().copy())
