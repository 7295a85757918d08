"""Trace DeBERTa's attention as one operator, SelfAttentionDisentangled.

A score is (query @ key + query @ position key + key @ position query) * scale; the last two terms depend on the
relative position of the tokens (arXiv:2006.03654, equation 4). A trace of transformers' code computes the keys and
queries of positions again in each run, although they depend on weights alone. It copies them for each row, multiplies
by the keys and queries of all positions, and only then picks the positions of the text: six layers of deberta-v3-base's
shape in int8 took 31 ms for 16 tokens, and take 5 ms with the operator (Zen 4, 2 cores). Such a trace also fails for a
text that is longer than the model's range of relative positions, and can be wrong if the text spans an odd number of
buckets.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from hfx.exporter.encoder.graph.attention import STEP
from hfx.exporter.graph import operators

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LONGEST = 1 << 15  # tokens of a text; the mask of a longer one would take more than 4 GB
CONTENT_TO_POSITION, POSITION_TO_CONTENT = "c2p", "p2c"  # query @ position key, and key @ position query


@contextlib.contextmanager
def as_operators(model: PreTrainedModel) -> Iterator[None]:
    """Make a trace in a block write each attention with relative positions of a DeBERTa model as one operator node."""
    encoders: list[Any] = [module for module in model.modules() if hasattr(module, "get_rel_embedding")]
    with contextlib.ExitStack() as stack, torch.no_grad():
        for encoder in encoders:
            for layer in encoder.layer:
                own = layer.attention.self
                if _is_operator(own):
                    stack.callback(setattr, layer.attention, "self", own)
                    layer.attention.self = _Disentangled(own, encoder.get_rel_embedding()).eval()
        yield


def _is_operator(attention: Any) -> bool:
    """Return whether the operator supports all position terms of the scores, and heads are not mixed."""
    terms, mixed = attention.pos_att_type, getattr(attention, "talking_head", False)
    known = 0 < len(terms) == len({CONTENT_TO_POSITION, POSITION_TO_CONTENT}.intersection(terms))
    return bool(attention.relative_attention and known and not mixed)


class _Operator(torch.autograd.Function):
    """Writes a node of the operator. Its definition (exporter/graph/operators.py) says what the node computes."""

    @staticmethod
    def forward(ctx: Any, qkv: torch.Tensor, *read: Any) -> torch.Tensor:
        """Return values of the right shape; a trace needs no more."""
        return qkv[..., : qkv.shape[-1] // 3]

    @staticmethod
    def symbolic(g: Any, *read: Any) -> Any:
        """Return the node, with its inputs, the number of heads and the scale."""
        *inputs, heads, scale = read
        node = g.op(f"{operators.DOMAIN}::{operators.DISENTANGLED}", *inputs, heads_i=heads, scale_f=scale)
        node.setType(inputs[0].type().with_sizes([None, None, None]))  # else the tracer warns
        return node


class _Disentangled(nn.Module):
    """Replaces DeBERTa's attention: one linear for queries, keys and values, and the operator.

    `embeddings` [buckets, hidden] are the embeddings of relative positions.
    """

    position_keys: torch.Tensor
    position_queries: torch.Tensor
    buckets: torch.Tensor

    def __init__(self, own: Any, embeddings: torch.Tensor) -> None:
        super().__init__()
        self.heads = own.num_attention_heads
        dim = own.all_head_size // self.heads
        self.scale = (dim * (1 + len(own.pos_att_type))) ** -0.5
        weight, bias, to_keys, to_queries = (_version_1 if hasattr(own, "in_proj") else _version_2)(own)
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        for name, linear in (("position_keys", to_keys), ("position_queries", to_queries)):
            of_positions = linear(embeddings) if linear else torch.zeros(len(embeddings), own.all_head_size)
            by_head = of_positions.view(-1, self.heads, dim).permute(1, 2, 0)
            self.register_buffer(name, functional.pad(by_head, (0, -len(embeddings) % STEP)).contiguous())
        self.register_buffer("buckets", _buckets(own, len(embeddings)))

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, *unread: Any, **named: Any) -> Any:
        """Attend to `hidden_states` [rows, width, hidden].

        `attention_mask` [rows, 1, width, width] is 1 where a query attends to a key.
        """
        width = attention_mask.shape[-1]
        qkv = functional.linear(hidden_states, self.weight, self.bias)
        mask = (1.0 - attention_mask.to(qkv.dtype)) * torch.finfo(qkv.dtype).min
        buckets = self.buckets[LONGEST - width + 1 : LONGEST + width + 1]
        read: Any = (qkv, mask, buckets, self.position_keys, self.position_queries, self.heads, self.scale)
        return _Operator.apply(*read), None  # type: ignore[no-untyped-call]


def _buckets(own: Any, count: int) -> torch.Tensor:
    """Return the int32 bucket of each relative position, from LONGEST tokens before the query to LONGEST after it.

    There are `count` buckets.
    """
    distance = torch.arange(LONGEST, -LONGEST - 1, -1)
    if getattr(own, "position_buckets", -1) > 0:
        in_buckets = sys.modules[type(own).__module__].make_log_bucket_position
        distance = in_buckets(distance, own.position_buckets, own.max_relative_positions)
    return torch.clamp(distance.to(torch.long) + count // 2, 0, count - 1).to(torch.int32)


Parts = tuple[torch.Tensor, torch.Tensor, nn.Module | None, nn.Module | None]


def _version_1(own: Any) -> Parts:
    """Return the weight and bias of queries, keys and values, and the linears for position keys and queries (or None).

    This is for DeBERTa version 1.
    """
    by_head = own.in_proj.weight.view(own.num_attention_heads, 3, -1, own.in_proj.in_features)
    weight = by_head.transpose(0, 1).reshape(own.in_proj.weight.shape)
    bias = torch.cat([own.q_bias, torch.zeros_like(own.q_bias), own.v_bias])
    return weight, bias, getattr(own, "pos_proj", None), getattr(own, "pos_q_proj", None)


def _version_2(own: Any) -> Parts:
    """Return the same as `_version_1` for versions 2 and 3, where positions may share the linears of tokens."""
    linears = (own.query_proj, own.key_proj, own.value_proj)
    weight, bias = (torch.cat([getattr(linear, name) for linear in linears]) for name in ("weight", "bias"))
    given = ("key_proj", "query_proj") if own.share_att_key else ("pos_key_proj", "pos_query_proj")
    terms = zip(given, (CONTENT_TO_POSITION, POSITION_TO_CONTENT), strict=True)
    to_keys, to_queries = (getattr(own, name) if term in own.pos_att_type else None for name, term in terms)
    return weight, bias, to_keys, to_queries
