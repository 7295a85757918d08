"""Attention over pages of K and V, as a file can say it: standard attention on flat rows, named by kind and layer.

OpenVINO reads no PagedAttention from a file; the runner puts it in the place of these nodes when it opens a model
(python_backends/engine/paged_attention.py), and adds the inputs for pages then.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from openvino import opset16 as ops

from hfx.exporter.openvino.graph import OpenVinoGraph, Value


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
